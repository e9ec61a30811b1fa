/* The four functions that compilers call on their own in freestanding code: a machine without a C library links these. */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *restrict dst, const void *restrict src, size_t bytes);
void *memmove(void *dst, const void *src, size_t bytes);
void *memset(void *dst, int value, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);

/* In a loop, keeps the compiler from seeing that it is memcpy or memset, and from making it a call of itself. */
#define KEEP_LOOP() __asm__ volatile("" ::: "memory")

#define WORD sizeof(uint32_t)
typedef uint32_t __attribute__((may_alias)) word_t;

static int is_aligned(const void *a, const void *b) { return (((uintptr_t)a | (uintptr_t)b) & (WORD - 1)) == 0; }

void *memcpy(void *restrict dst, const void *restrict src, size_t bytes) {
    uint8_t *to = dst;
    const uint8_t *from = src;
    if (is_aligned(dst, src)) {
        for (; bytes >= WORD; bytes -= WORD) {
            *(word_t *)(void *)to = *(const word_t *)(const void *)from;
            to += WORD;
            from += WORD;
            KEEP_LOOP();
        }
    }
    for (; bytes > 0; bytes--) {
        *to++ = *from++;
        KEEP_LOOP();
    }
    return dst;
}

void *memmove(void *dst, const void *src, size_t bytes) {
    uint8_t *to = dst;
    const uint8_t *from = src;
    if ((uintptr_t)to - (uintptr_t)from >= bytes) {
        return memcpy(dst, src, bytes); /* upwards reads each byte before it is written */
    }
    while (bytes-- > 0) {
        to[bytes] = from[bytes];
        KEEP_LOOP();
    }
    return dst;
}

void *memset(void *dst, int value, size_t bytes) {
    uint8_t *to = dst;
    if (is_aligned(dst, dst)) {
        uint32_t word = (uint8_t)value * 0x01010101u;
        for (; bytes >= WORD; bytes -= WORD) {
            *(word_t *)(void *)to = word;
            to += WORD;
            KEEP_LOOP();
        }
    }
    for (; bytes > 0; bytes--) {
        *to++ = (uint8_t)value;
        KEEP_LOOP();
    }
    return dst;
}

int memcmp(const void *a, const void *b, size_t bytes) {
    const uint8_t *p = a;
    const uint8_t *q = b;
    for (; bytes > 0; bytes--, p++, q++) {
        if (*p != *q) {
            return *p < *q ? -1 : 1;
        }
    }
    return 0;
}
