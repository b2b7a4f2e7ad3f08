// y = x · w with 4-bit weights: x (M, K) bfloat16, w packed by `prepare()` of solution.py, y (M, N) bfloat16.
//
// How it is done:
//   1. Columns come in tiles of 16, repacked so that the 16 bytes of a tile's K-pair are neighbours and a tile is read once,
//      front to back. Tiles are independent: threads share them out.
//   2. The 128 K-rows of a group are unpacked to floats (8 KB, in L1), then multiplied with blocks of up to four rows of x.
//   3. Scale and zero point are folded in once per group: s · (Σ x·q − z · Σ x), everything in float32.
//
// The vectors are compiler vector extensions, so the same source serves AVX2, AVX-512, SSE2 and NEON machines.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include <sched.h>

namespace {

constexpr int64_t GROUP = 128;
constexpr int64_t TILE = 16;
constexpr int64_t LANES = 8;
constexpr int64_t VECTORS = TILE / LANES;
constexpr int64_t ROWS = 4;  // of x at a time: 4 × 2 accumulators, 2 weights and a broadcast fit 16 registers
constexpr int MOST_THREADS = 16;
// Below this many products, starting a thread (20 to 50 µs) costs more than it saves.
constexpr int64_t PARALLEL_PRODUCTS = 4'000'000;

using Floats = float __attribute__((vector_size(4 * LANES)));
using Bytes = uint8_t __attribute__((vector_size(LANES)));

template <class V>
V load(const void *at) {
    V v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Round to nearest, ties to even; NaN stays NaN.
uint16_t to_bf16(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

struct Call {
    int64_t m, n, k, groups;
    const uint8_t *packed;  // (tiles, K/2, 16)
    const float *factors;   // (tiles, groups, scale then zero, 16)
    std::vector<float> x;   // (M, K)
    std::vector<float> sums;  // (M, groups): Σ x over a group
    uint16_t *y;
};

// The 128 rows of one group as floats: q (128, 16).
void unpack(const uint8_t *packed, float *q) {
    for (int64_t pair = 0; pair < GROUP / 2; ++pair)
        for (int64_t v = 0; v < VECTORS; ++v) {
            const Bytes both = load<Bytes>(packed + pair * TILE + v * LANES);
            const Floats low = __builtin_convertvector(both & 15, Floats), high = __builtin_convertvector(both >> 4, Floats);
            std::memcpy(q + 2 * pair * TILE + v * LANES, &low, sizeof low);
            std::memcpy(q + (2 * pair + 1) * TILE + v * LANES, &high, sizeof high);
        }
}

// total (R, 16) += scale · (x_g · q − zero · Σ x_g) for R rows of x, `stride` floats apart.
template <int64_t R>
void multiply(const float *x, const float *sums, const Call &call, const float *q, const float *factors, float *total) {
    Floats sum[R][VECTORS] = {};
    for (int64_t k = 0; k < GROUP; ++k)
        for (int64_t v = 0; v < VECTORS; ++v) {
            const Floats w = load<Floats>(q + k * TILE + v * LANES);
            for (int64_t r = 0; r < R; ++r) sum[r][v] += w * x[r * call.k + k];
        }
    for (int64_t r = 0; r < R; ++r)
        for (int64_t v = 0; v < VECTORS; ++v) {
            float *at = total + r * TILE + v * LANES;
            const Floats scale = load<Floats>(factors + v * LANES), zero = load<Floats>(factors + TILE + v * LANES);
            const Floats next = load<Floats>(at) + scale * (sum[r][v] - zero * sums[r * call.groups]);
            std::memcpy(at, &next, sizeof next);
        }
}

// One tile of columns, all rows. `total` is this thread's (M, 16).
void do_tile(const Call &call, int64_t tile, std::vector<float> &total) {
    alignas(64) float q[GROUP * TILE];
    std::fill(total.begin(), total.end(), 0.0f);
    for (int64_t g = 0; g < call.groups; ++g) {
        unpack(call.packed + (tile * call.k + g * GROUP) / 2 * TILE, q);
        const float *factors = call.factors + (tile * call.groups + g) * 2 * TILE;
        int64_t m = 0;
        const auto block = [&](auto rows) {
            multiply<rows>(&call.x[m * call.k + g * GROUP], &call.sums[m * call.groups + g], call, q, factors, &total[m * TILE]);
            m += rows;
        };
        while (m + ROWS <= call.m) block(std::integral_constant<int64_t, ROWS>{});
        if (m + 2 <= call.m) block(std::integral_constant<int64_t, 2>{});
        if (m < call.m) block(std::integral_constant<int64_t, 1>{});
    }
    const int64_t first = tile * TILE, width = std::min(TILE, call.n - first);
    for (int64_t m = 0; m < call.m; ++m)
        for (int64_t c = 0; c < width; ++c) call.y[m * call.n + first + c] = to_bf16(total[m * TILE + c]);
}

int threads_for(const Call &call, int64_t tiles) {
    if (call.m * call.n * call.k < PARALLEL_PRODUCTS) return 1;
    cpu_set_t mine;
    const int cpus = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return static_cast<int>(std::min<int64_t>(tiles, std::min(cpus, MOST_THREADS)));
}

}  // namespace

extern "C" int w4a16(const uint16_t *x, const uint8_t *packed, const float *factors, uint16_t *y, int64_t m, int64_t n,
                     int64_t k) {
    if (m < 0 || n < 0 || k <= 0 || k % GROUP != 0) return 1;
    Call call{m, n, k, k / GROUP, packed, factors, std::vector<float>(m * k), std::vector<float>(m * (k / GROUP)), y};
    for (int64_t i = 0; i < m * k; ++i) {
        call.x[i] = from_bf16(x[i]);
        call.sums[i / GROUP] += call.x[i];
    }
    const int64_t tiles = (n + TILE - 1) / TILE;
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        std::vector<float> total(m * TILE);
        for (int64_t tile; (tile = next.fetch_add(1, std::memory_order_relaxed)) < tiles;) do_tile(call, tile, total);
    };
    std::vector<std::thread> helpers;
    try {
        for (int i = threads_for(call, tiles); i > 1; --i) helpers.emplace_back(work);
    } catch (const std::system_error &) {
        // No more threads are to be had: those that there are do the rest.
    }
    work();
    for (std::thread &helper : helpers) helper.join();
    return 0;
}
