/* A program that comes to a good or bad end: `machine SCENARIO [TEXT ...]`. */
#include "port.h"

/* Uses `bytes` of stack at least. By a pointer, so that no compiler makes a loop of it. */
static uint32_t descend(uint32_t bytes);
static uint32_t (*volatile again)(uint32_t) = descend;

static uint32_t descend(uint32_t bytes) {
    volatile uint32_t frame[32];
    for (uint32_t i = 0; i < sizeof frame / sizeof frame[0]; i++) {
        frame[i] = bytes;
    }
    return bytes > sizeof frame ? again(bytes - (uint32_t)sizeof frame) + frame[0] : frame[0];
}

static uint32_t parse(const char *text) {
    uint32_t value = 0;
    for (; *text != '\0'; text++) {
        value = value * 10 + (uint32_t)(*text - '0');
    }
    return value;
}

void illegal(void);
__asm__(".globl illegal\nillegal: .word 0\n");

int qf_main(int argc, char **argv) {
    char scenario = argc > 1 ? argv[1][0] : '?';
    uint32_t number = argc > 2 ? parse(argv[2]) : 0;
    switch (scenario) {
    case 'a': /* arguments */
        for (int i = 2; i < argc; i++) {
            qf_print(argv[i]);
            qf_print("\n");
        }
        return 0;
    case 'd': { /* decimal and hexadecimal */
        static const uint64_t values[] = {0, 9, 10, 4294967296u, 10000000000000000000u, UINT64_MAX};
        for (uint32_t i = 0; i < sizeof values / sizeof values[0]; i++) {
            qf_print_unsigned(values[i]);
            qf_print(" ");
            qf_print_hex(values[i]);
            qf_print("\n");
        }
        return 0;
    }
    case 'l': /* load */
        qf_print_unsigned(*(const volatile uint32_t *)(uintptr_t)number);
        return 1;
    case 'i': /* illegal instruction */
        qf_print_hex((uintptr_t)illegal);
        qf_print("\n");
        illegal();
        return 1;
    case 's': /* stack */
        descend(number);
        qf_print_unsigned(qf_stack_used(0));
        return 0;
    case 'x': /* exit */
        return (int)number;
    default:
        return 1;
    }
}
