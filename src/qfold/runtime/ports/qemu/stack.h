/* The stack, for start.S and linux.c. */
#ifndef QF_STACK_BYTES
#define QF_STACK_BYTES 8192 /* a multiple of 16 */
#endif

#define STACK_PAGE 4096
#define STACK_PAINT 0x51ACC0DE
