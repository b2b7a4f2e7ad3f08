// W4A16 with the 128+q trick. Per group of 128 rows: acc = sum x·(128+q), sx = sum x, y += s·(acc - (128+z)·sx), in float32.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t GROUP = 128;
constexpr uint16_t MAGIC = 0x4300;  // bfloat16 128; its last four bits count units

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

}  // namespace

// inputs: x, w_q, scales, zeros; outputs: y; shape: M, N, K
extern "C" int w4a16(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    const int64_t M = shape[0], N = shape[1], K = shape[2];
    if (K % GROUP) return 1;
    const auto *x = static_cast<const uint16_t *>(inputs[0]);
    const auto *q = static_cast<const uint8_t *>(inputs[1]);
    const auto *scales = static_cast<const uint16_t *>(inputs[2]);
    const auto *zeros = static_cast<const uint16_t *>(inputs[3]);
    auto *y = static_cast<uint16_t *>(outputs[0]);
    std::vector<float> acc(N), sum(N);
    for (int64_t m = 0; m < M; ++m) {
        std::fill(sum.begin(), sum.end(), 0.0f);
        for (int64_t g = 0; g < K / GROUP; ++g) {
            std::fill(acc.begin(), acc.end(), 0.0f);
            float sx = 0;
            for (int64_t k = g * GROUP; k < (g + 1) * GROUP; k += 2) {
                const float a = widen(x[m * K + k]), b = widen(x[m * K + k + 1]);
                const uint8_t *row = q + k / 2 * N;
                sx += a + b;
                for (int64_t n = 0; n < N; ++n)
                    acc[n] += a * widen(MAGIC | (row[n] & 15)) + b * widen(MAGIC | (row[n] >> 4));
            }
            for (int64_t n = 0; n < N; ++n)
                sum[n] += widen(scales[g * N + n]) * (acc[n] - (128.0f + widen(zeros[g * N + n])) * sx);
        }
        for (int64_t n = 0; n < N; ++n) y[m * N + n] = narrow(sum[n]);
    }
    return 0;
}
