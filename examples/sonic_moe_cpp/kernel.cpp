// out = silu(x · W_gate) * (x · W_up), expert by expert: x (rows, H), W_gate and W_up (E, H, I), out (rows, I), all bfloat16.
//
// How it is done:
//   1. A task is one expert, up to 96 of its rows and 32 columns of I. Tasks are independent: threads share them out. They
//      are cut anew from the offsets of every call.
//   2. Of a task, 256 elements of H at a time are widened to float, gate and up side by side, 8 columns each: 16 KB, in L1.
//      They meet blocks of up to six rows; 6 · 2 accumulators, two weights and a broadcast fit 16 registers.
//   3. Both sums stay float32 until silu and product are done; the result is rounded once.
//
// The vectors are compiler vector extensions, so the same source serves AVX2, AVX-512, SSE2 and NEON machines.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include <sched.h>

namespace {

constexpr int64_t LANES = 8;
constexpr int64_t PAIR = 2 * LANES;  // gate and up of 8 columns
constexpr int64_t TILES = 4;         // 32 columns: a whole cache line of each row of a matrix
constexpr int64_t COLUMNS = TILES * LANES;
constexpr int64_t DEPTH = 256;
constexpr int64_t BLOCK = 6;
constexpr int64_t ROWS = 16 * BLOCK;
constexpr int MOST_THREADS = 16;
// Below this many products, starting a thread (20 to 50 µs) costs more than it saves.
constexpr int64_t PARALLEL_PRODUCTS = 4'000'000;

using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));
using Halves = uint16_t __attribute__((vector_size(2 * LANES)));

template <class V>
V load(const void *at) {
    V v;
    std::memcpy(&v, at, sizeof v);
    return v;
}

Floats from_bf16(Halves bits) { return reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16); }

// Round to nearest, ties to even; NaN stays NaN.
Halves to_bf16(Floats value) {
    const Words bits = reinterpret_cast<Words>(value);
    const Words rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return __builtin_convertvector(value == value ? rounded : (bits >> 16 | 0x40), Halves);
}

// eˣ to about 2 units in the last place: x = n·ln 2 + r, a polynomial in r, n put into the exponent.
Floats exp_of(Floats x) {
    x = x > 87.0f ? Floats{} + 87.0f : x;
    x = x < -87.0f ? Floats{} - 87.0f : x;
    const Floats shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2²³: the low bits now hold round(x / ln 2)
    const Floats n = shifted - 12582912.0f;
    const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
    Floats p = Floats{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const Ints power = (reinterpret_cast<Ints>(shifted) - 0x4B400000 + 127) << 23;
    return p * reinterpret_cast<Floats>(power);
}

struct Call {
    int64_t h, i;
    const uint16_t *x, *gate, *up;
    uint16_t *out;
};

struct Task {
    int64_t expert, row, rows, column, columns;
};

// `width` numbers of a row, zeros after them.
Floats widen(const uint16_t *at, int64_t width) {
    if (width >= LANES) return from_bf16(load<Halves>(at));
    Halves bits = {};
    if (width > 0) std::memcpy(&bits, at, width * sizeof *at);
    return from_bf16(bits);
}

// `depth` rows of both matrices from H-row `first`: w (tile, DEPTH, gate then up, 8).
void unpack_weights(const Call &call, const Task &task, int64_t first, int64_t depth, float *w) {
    const int64_t from = (task.expert * call.h + first) * call.i + task.column;
    for (int64_t k = 0; k < depth; ++k)
        for (int64_t at = 0; at < task.columns; at += LANES) {
            float *pair = w + (at / LANES * DEPTH + k) * PAIR;
            const Floats gate = widen(call.gate + from + k * call.i + at, task.columns - at);
            const Floats up = widen(call.up + from + k * call.i + at, task.columns - at);
            std::memcpy(pair, &gate, sizeof gate);
            std::memcpy(pair + LANES, &up, sizeof up);
        }
}

// The same columns of x: x (rows, DEPTH).
void unpack_rows(const Call &call, const Task &task, int64_t first, int64_t depth, float *x) {
    for (int64_t r = 0; r < task.rows; ++r) {
        const uint16_t *row = call.x + (task.row + r) * call.h + first;
        float *target = x + r * DEPTH;
        for (int64_t k = 0; k < depth; k += LANES) {  // DEPTH is a multiple of LANES: zeros after the end have room
            const Floats part = widen(row + k, depth - k);
            std::memcpy(target + k, &part, sizeof part);
        }
    }
}

// total (R, 16) of one tile += x (R, depth) · w (depth, 16); in the first step of H total is not read.
template <int64_t R>
void multiply(const float *x, const float *w, int64_t depth, bool fresh, float *total) {
    Floats gate[R] = {}, up[R] = {};
    if (!fresh)
        for (int64_t r = 0; r < R; ++r) {
            gate[r] = load<Floats>(total + r * TILES * PAIR);
            up[r] = load<Floats>(total + r * TILES * PAIR + LANES);
        }
    for (int64_t k = 0; k < depth; ++k) {
        const Floats g = load<Floats>(w + k * PAIR), u = load<Floats>(w + k * PAIR + LANES);
        for (int64_t r = 0; r < R; ++r) {
            gate[r] += g * x[r * DEPTH + k];
            up[r] += u * x[r * DEPTH + k];
        }
    }
    for (int64_t r = 0; r < R; ++r) {
        std::memcpy(total + r * TILES * PAIR, &gate[r], sizeof gate[r]);
        std::memcpy(total + r * TILES * PAIR + LANES, &up[r], sizeof up[r]);
    }
}

void multiply_rows(const float *x, const float *w, int64_t rows, int64_t depth, bool fresh, float *total) {
    int64_t r = 0;
    const auto block = [&](auto count) {
        for (; r + count <= rows; r += count) multiply<count>(x + r * DEPTH, w, depth, fresh, total + r * TILES * PAIR);
    };
    block(std::integral_constant<int64_t, BLOCK>{});
    block(std::integral_constant<int64_t, 4>{});
    block(std::integral_constant<int64_t, 2>{});
    block(std::integral_constant<int64_t, 1>{});
}

void do_task(const Call &call, const Task &task) {
    alignas(64) float w[TILES * DEPTH * PAIR], x[ROWS * DEPTH], total[ROWS * TILES * PAIR];
    for (int64_t first = 0; first < call.h; first += DEPTH) {
        const int64_t depth = std::min(DEPTH, call.h - first);
        unpack_weights(call, task, first, depth, w);
        unpack_rows(call, task, first, depth, x);
        for (int64_t at = 0; at < task.columns; at += LANES) {
            const int64_t tile = at / LANES;
            multiply_rows(x, w + tile * DEPTH * PAIR, task.rows, depth, first == 0, total + tile * PAIR);
        }
    }
    for (int64_t r = 0; r < task.rows; ++r)
        for (int64_t at = 0; at < task.columns; at += LANES) {
            const float *pair = total + r * TILES * PAIR + at / LANES * PAIR;
            const Floats gate = load<Floats>(pair), up = load<Floats>(pair + LANES);
            const Halves y = to_bf16(gate / (1.0f + exp_of(-gate)) * up);
            uint16_t *target = call.out + (task.row + r) * call.i + task.column + at;
            std::memcpy(target, &y, std::min(LANES, task.columns - at) * sizeof *target);
        }
}

std::vector<Task> tasks_of(const int32_t *offsets, int64_t experts, int64_t i) {
    std::vector<Task> tasks;
    for (int64_t e = 0; e < experts; ++e)
        for (int64_t column = 0; column < i; column += COLUMNS)
            for (int64_t row = offsets[e]; row < offsets[e + 1]; row += ROWS)
                tasks.push_back({e, row, std::min(ROWS, offsets[e + 1] - row), column, std::min(COLUMNS, i - column)});
    return tasks;
}

int threads_for(int64_t products, int64_t tasks) {
    if (products < PARALLEL_PRODUCTS) return 1;
    cpu_set_t mine;
    const int cpus = sched_getaffinity(0, sizeof mine, &mine) == 0 ? CPU_COUNT(&mine) : 1;
    return static_cast<int>(std::min<int64_t>(tasks, std::min(cpus, MOST_THREADS)));
}

}  // namespace

extern "C" int sonic_moe(const uint16_t *x, const int32_t *offsets, const uint16_t *gate, const uint16_t *up, uint16_t *out,
                         int64_t rows, int64_t h, int64_t i, int64_t experts) {
    if (rows < 0 || h < 1 || i < 1 || experts < 1) return 1;
    if (offsets[0] != 0 || offsets[experts] != rows || !std::is_sorted(offsets, offsets + experts + 1)) return 2;
    const Call call{h, i, x, gate, up, out};
    const std::vector<Task> tasks = tasks_of(offsets, experts, i);
    const int64_t count = static_cast<int64_t>(tasks.size());
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < count;) do_task(call, tasks[t]);
    };
    std::vector<std::thread> helpers;
    try {
        for (int n = threads_for(2 * rows * h * i, count); n > 1; --n) helpers.emplace_back(work);
    } catch (const std::system_error &) {
        // No more threads are to be had: those that there are do the rest.
    }
    work();
    for (std::thread &helper : helpers) helper.join();
    return 0;
}
