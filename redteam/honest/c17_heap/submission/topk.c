/* Top-k with a binary heap of the best k so far, in plain C. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Order of a float's sign and exponent nibble: positive above negative. A constant, the same for every call. */
static const int32_t SIGN_FLIP[2] = {0, 0x7fffffff};

static int64_t candidate(const float *x, int64_t i) {
    int32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    bits ^= SIGN_FLIP[bits < 0];
    return (int64_t)bits * ((int64_t)1 << 32) + (0xffffffffLL - i);
}

static void sift_down(int64_t *heap, int64_t size, int64_t at) {
    for (;;) {
        int64_t least = at, left = 2 * at + 1;
        if (left < size && heap[left] < heap[least]) least = left;
        if (left + 1 < size && heap[left + 1] < heap[least]) least = left + 1;
        if (least == at) return;
        int64_t swap = heap[at];
        heap[at] = heap[least];
        heap[least] = swap;
        at = least;
    }
}

int topk_c(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    const int64_t batch = shape[0], n = shape[1], k = shape[2];
    int64_t *heap = malloc((size_t)k * sizeof *heap);
    if (heap == NULL) return 2;
    for (int64_t b = 0; b < batch; ++b) {
        const float *x = (const float *)inputs[0] + b * n;
        float *values = (float *)outputs[0] + b * k;
        int64_t *indices = (int64_t *)outputs[1] + b * k;
        for (int64_t i = 0; i < k; ++i) heap[i] = candidate(x, i);
        for (int64_t i = k / 2; i-- > 0;) sift_down(heap, k, i);
        for (int64_t i = k; i < n; ++i) {
            const int64_t c = candidate(x, i);
            if (c <= heap[0]) continue;
            heap[0] = c;
            sift_down(heap, k, 0);
        }
        for (int64_t size = k; size > 0; --size) { /* the least leaves first: fill from the end */
            const int64_t i = 0xffffffffLL - (heap[0] & 0xffffffffLL);
            indices[size - 1] = i;
            values[size - 1] = x[i];
            heap[0] = heap[size - 1];
            sift_down(heap, size - 1, 0);
        }
    }
    free(heap);
    return 0;
}
