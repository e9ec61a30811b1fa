/* Text for the console. Freestanding, and without a division: 64-bit ones would need a library on a 32-bit machine. */
#include "port.h"

void qf_print(const char *text) {
    size_t length = 0;
    while (text[length] != '\0') {
        length++;
    }
    while (length > 0) {
        ptrdiff_t done = qf_file_write(QF_STDERR, text, length);
        if (done <= 0) {
            return; /* there is nobody to tell */
        }
        text += done;
        length -= (size_t)done;
    }
}

size_t qf_decimal(char *text, uint64_t value, uint32_t least) {
    size_t length = 0;
    uint64_t power = 10000000000000000000u;
    for (uint32_t digits = 20; digits > 0; digits--) {
        char digit = '0';
        while (value >= power) {
            value -= power;
            digit++;
        }
        if (digit != '0' || length > 0 || digits <= least) {
            text[length++] = digit;
        }
        /* power / 10, which is exact: times the inverse of 5 modulo 2^64, halved. */
        power = digits > 1 ? (power >> 1) * 0xCCCCCCCCCCCCCCCDu : 1;
    }
    text[length] = '\0';
    return length;
}

void qf_print_unsigned(uint64_t value) {
    char text[QF_DECIMAL_SIZE];
    qf_decimal(text, value, 1);
    qf_print(text);
}

void qf_print_hex(uint64_t value) {
    char text[19] = "0x";
    size_t length = 2;
    for (int shift = 60; shift >= 0; shift -= 4) {
        uint32_t digit = (uint32_t)(value >> shift) & 15;
        if (digit != 0 || length > 2 || shift == 0) {
            text[length++] = "0123456789abcdef"[digit];
        }
    }
    text[length] = '\0';
    qf_print(text);
}
