#include "bare_metal.h"

/* The lowest address of the cores' stacks, core 0's first; from the link script. */
extern uint32_t __qf_stacks[];

#define WORDS (QF_STACK_BYTES / 4)
#define GUARD_WORDS (QF_STACK_GUARD / 4)

static const uint32_t *stack_of(uint32_t core) { return __qf_stacks + core * WORDS; }

uint32_t qf_stack_bytes(uint32_t core) {
    (void)core;
    return QF_STACK_BYTES;
}

uint32_t qf_stack_used(uint32_t core) {
    const uint32_t *stack = stack_of(core);
    uint32_t free_words = GUARD_WORDS;
    while (free_words < WORDS && stack[free_words] == QF_PAINT) {
        free_words++;
    }
    return free_words > GUARD_WORDS ? (WORDS - free_words) * 4 : QF_STACK_BYTES;
}

void qf_report_overflow(uint32_t core) {
    qf_print("stack overflow: core ");
    qf_print_unsigned(core);
    qf_print(" used all ");
    qf_print_unsigned(QF_STACK_BYTES);
    qf_print(" bytes of its stack\n");
}

int qf_stacks_are_good(void) {
    int good = 1;
    for (uint32_t core = 0; core < QF_CORES; core++) {
        if (qf_stack_used(core) == QF_STACK_BYTES) {
            qf_report_overflow(core);
            good = 0;
        }
    }
    return good;
}

int qf_is_stack_guard(uint32_t core, uint32_t address) {
    return address - (uint32_t)(uintptr_t)stack_of(core) < QF_STACK_GUARD;
}

/* The RISC-V Instruction Set Manual, volume II, "Machine Cause Register". */
static const char *cause_name(uint32_t cause) {
    switch (cause) {
    case 0:
        return "instruction address misaligned";
    case 1:
        return "instruction access fault";
    case 2:
        return "illegal instruction";
    case 3:
        return "breakpoint";
    case 4:
        return "load address misaligned";
    case 5:
        return "load access fault";
    case 6:
        return "store address misaligned";
    case 7:
        return "store access fault";
    case 11:
        return "environment call";
    default:
        return "unknown";
    }
}

void qf_report_trap(uint32_t core, uint32_t cause, uint32_t pc, uint32_t address) {
    qf_print("trap: core ");
    qf_print_unsigned(core);
    qf_print(": ");
    qf_print(cause_name(cause));
    qf_print(" (cause ");
    qf_print_unsigned(cause);
    qf_print("), pc ");
    qf_print_hex(pc);
    qf_print(", address ");
    qf_print_hex(address);
    qf_print("\n");
}
