/* What ports without an operating system share: painted stacks, and the report of a trap. */
#ifndef QFOLD_BARE_METAL_H
#define QFOLD_BARE_METAL_H

#include "port.h"

/* What start-up code fills stacks with. */
#define QF_PAINT 0x51ACC0DEu

/* The lowest bytes of each stack, which nobody may use; where the machine can, start-up code forbids it. */
#define QF_STACK_GUARD 16

/* Prints "trap: core C: <cause> (cause N), pc 0x..., address 0x..." as a line. The caller ends the run with QF_EXIT_TRAP.
 * `cause`: mcause of an exception. Who starts the simulator adds symbols to the addresses that follow "pc ". */
void qf_report_trap(uint32_t core, uint32_t cause, uint32_t pc, uint32_t address);

/* Prints that a core's stack is too small, as a line. The caller ends the run with QF_EXIT_STACK. */
void qf_report_overflow(uint32_t core);

/* Whether no core has used all of its stack; reports those that have. */
int qf_stacks_are_good(void);

/* Whether an address is in the guard of a core's stack. */
int qf_is_stack_guard(uint32_t core, uint32_t address);

#endif
