// y = x · w for small M. Packed weights: nibbles of rows r and r + 64 of a group share a byte, scale and scale·zero are float32;
// together 1.06 times the bytes of the declared format.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t GROUP = 128, HALF = GROUP / 2;

inline float widen(uint16_t b) {
    const uint32_t u = static_cast<uint32_t>(b) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
}

inline uint16_t narrow(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

inline uint8_t nibble(const uint8_t *q, int64_t k, int64_t n, int64_t N) {
    const uint8_t pair = q[k / 2 * N + n];
    return k % 2 ? pair >> 4 : pair & 15;
}

}  // namespace

// packed: K·N/2 bytes of nibbles, then (K/128, N) float32 scales, then (K/128, N) float32 scale·zero
extern "C" void repack(const uint8_t *q, const uint16_t *scales, const uint16_t *zeros, int64_t K, int64_t N, uint8_t *packed) {
    auto *scale = reinterpret_cast<float *>(packed + K * N / 2), *offset = scale + K / GROUP * N;
    for (int64_t g = 0; g < K / GROUP; ++g)
        for (int64_t n = 0; n < N; ++n) {
            for (int64_t r = 0; r < HALF; ++r)
                packed[(g * HALF + r) * N + n] = static_cast<uint8_t>(
                    nibble(q, g * GROUP + r, n, N) | nibble(q, g * GROUP + HALF + r, n, N) << 4);
            scale[g * N + n] = widen(scales[g * N + n]);
            offset[g * N + n] = widen(scales[g * N + n]) * widen(zeros[g * N + n]);
        }
}

// x: (M, K) bfloat16, y: (M, N) bfloat16
extern "C" void multiply(const uint16_t *x, const uint8_t *packed, int64_t M, int64_t N, int64_t K, uint16_t *y) {
    const auto *scale = reinterpret_cast<const float *>(packed + K * N / 2), *offset = scale + K / GROUP * N;
    std::vector<float> acc(N), sum(N);
    for (int64_t m = 0; m < M; ++m) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t g = 0; g < K / GROUP; ++g) {
            const uint16_t *part = x + m * K + g * GROUP;
            std::fill(acc.begin(), acc.end(), 0.0f);
            float total = 0;
            for (int64_t r = 0; r < HALF; ++r) {
                const float a = widen(part[r]), b = widen(part[HALF + r]);
                const uint8_t *row = packed + (g * HALF + r) * N;
                total += a + b;
                for (int64_t n = 0; n < N; ++n)
                    acc[n] += a * static_cast<float>(row[n] & 15) + b * static_cast<float>(row[n] >> 4);
            }
            for (int64_t n = 0; n < N; ++n) sum[n] += scale[g * N + n] * acc[n] - offset[g * N + n] * total;
        }
        for (int64_t n = 0; n < N; ++n) y[m * N + n] = narrow(sum[n]);
    }
}
