/* Files, console and clock of a machine with an operating system and a C library: for the ports host and threads. */
#define _POSIX_C_SOURCE 200112L

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "port.h"

/* No I/O is buffered here, so that nothing is lost when a run ends on whichever thread. */
void qf_exit(int status) { _Exit(status); }

int qf_file_open(const char *path, int write) {
    return open(path, write ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0666);
}

ptrdiff_t qf_file_read(int file, void *data, size_t bytes) { return read(file, data, bytes); }

ptrdiff_t qf_file_write(int file, const void *data, size_t bytes) { return write(file, data, bytes); }

int qf_file_close(int file) { return close(file); }

uint64_t qf_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const uint32_t qf_clock_per_second = 1000000000u;

/* The operating system's stacks are not painted. */
uint32_t qf_stack_bytes(uint32_t core) {
    (void)core;
    return 0;
}

uint32_t qf_stack_used(uint32_t core) {
    (void)core;
    return 0;
}

int main(int argc, char **argv) { return qf_main(argc, argv); }
