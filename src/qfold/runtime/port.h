/* What the runner asks of a port, besides qfold_rt.h: files, a console, a clock, and where stacks were painted.
 *
 * A port brings its own start-up, which calls qf_main on core 0 when qf_fork, qf_barrier and the DMA work, and ends the run
 * with its return value. None of these functions is called by generated code. Unless said otherwise they are called on core 0.
 */
#ifndef QFOLD_PORT_H
#define QFOLD_PORT_H

#include <stddef.h>
#include <stdint.h>

#include "qfold_rt.h"

/* The program: runner.c. `argv[0]` is not looked at, `argv[argc]` need not exist. Returns the exit status. */
int qf_main(int argc, char **argv);

/* Ends the run with that status, on whichever core it is called and whatever the other cores do. */
#if defined(__GNUC__)
__attribute__((noreturn))
#endif
void qf_exit(int status);

/* Statuses besides those of runner.c: a rule of the DMA was broken (debug_dma.c), a core trapped, a stack was too small (both
 * with a message as in ports/bare_metal.h), cores wait for each other for ever. */
enum { QF_EXIT_DMA = 70, QF_EXIT_TRAP = 71, QF_EXIT_STACK = 72, QF_EXIT_DEADLOCK = 73 };

/* ---- files --------------------------------------------------------------------------------------------- */

/* These two are open from the start; a machine with one console writes both to it. Both may be written on any core. */
#define QF_STDOUT 1
#define QF_STDERR 2

/* A file (not QF_STDOUT or QF_STDERR), or -1. `write` 0: an existing file, to read from its start. 1: a new, empty file in
 * place of what may be there. */
int qf_file_open(const char *path, int write);

/* How many bytes were read or written, which may be fewer than were asked for; 0 at the end of a file; -1 on an error. */
ptrdiff_t qf_file_read(int file, void *data, size_t bytes);
ptrdiff_t qf_file_write(int file, const void *data, size_t bytes);

/* 0, or -1 when what was written is not all in the file. */
int qf_file_close(int file);

/* ---- console (console.c, over qf_file_write) -------------------------------------------------------- */

/* To QF_STDERR, on any core. Lines of several cores at once may be mixed up. */
void qf_print(const char *text);
void qf_print_unsigned(uint64_t value);
void qf_print_hex(uint64_t value);

/* `value` in decimal, with leading zeros up to `least` digits, and a 0 byte. Returns the digits. */
#define QF_DECIMAL_SIZE 21
size_t qf_decimal(char *text, uint64_t value, uint32_t least);

/* ---- debug build of the DMA (debug_dma.c) --------------------------------------------------------------- */

/* Whether all transfers of the fork that ends have been waited for; ends the run when not. For qf_fork, on core 0, when all cores
 * have returned. Only with -DQFOLD_DEBUG_DMA, where a port must not define qf_dma_*. */
void qf_debug_dma_end_of_fork(void);

/* ---- clock --------------------------------------------------------------------------------------------- */

/* What the runner times runs by, and its ticks per second. 0 ticks per second: the ticks are cycles or instructions of core 0
 * (qf_cycles), and are printed as they are. */
uint64_t qf_clock(void);
extern const uint32_t qf_clock_per_second;

/* ---- stacks -------------------------------------------------------------------------------------------- */

/* Bytes of a core's stack, and how many of them were ever written. Both 0 where the port does not paint stacks. */
uint32_t qf_stack_bytes(uint32_t core);
uint32_t qf_stack_used(uint32_t core);

#endif
