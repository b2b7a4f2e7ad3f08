// A whole rollout of the 11×11 grid world under its MinGRU policy, float32.
//
// How it is done:
//   1. Environments come in blocks of 16 (of 8 where there are no more), one per lane. A block's hidden vector (256 × 16 floats, 16 KB) stays in L1 while
//      the weights stream past it; two hidden units and their three gates, six rows of the matrix, are done at once.
//   2. `prepare()` of solution.py lays those six rows side by side, so a layer is read front to back. It also multiplies the
//      first layer's matrix with the linear encoder, which leaves four products per gate instead of 256.
//   3. Each thread owns some blocks for the whole rollout. The environments meet only in "did anybody hit?", one flag per
//      step, set by whoever sees a hit and read by all after a barrier.
//
// The vectors are compiler vector extensions, so the same source serves AVX2, AVX-512, SSE2 and NEON machines.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <latch>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include <sched.h>

namespace {

constexpr int BOARD = 11, HIDDEN = 256, LAYERS = 3, ACTIONS = 4;
constexpr int LANES = 8;
constexpr int UNITS = 2, GATES = 3;  // 2 · 3 · 2 accumulators, two inputs and a broadcast fit 16 registers
constexpr int MOST_THREADS = 16;
constexpr uint64_t LOW_63 = ~uint64_t{0} >> 1;

using Floats = float __attribute__((vector_size(4 * LANES)));
using Ints = int32_t __attribute__((vector_size(4 * LANES)));

struct Weights {
    const float *enc, *enc_bias;        // (256, 4), (256)
    const float *folded, *folded_bias;  // (768, 4), (768): the first layer's matrix times the encoder's
    const float *gru;                   // (layers 1 and 2, 128 pairs of units, 256 inputs, 3 gates, 2 units)
    const float *heads;                 // (5, 256): actions, then value
    const float *heads_bias;            // (5)
};

// One number for each environment of a block: V = 1 or 2 vectors.
template <int V>
struct Vector {
    Floats part[V];
};

// ── Nonlinearities ───────────────────────────────────────────────────────────────────────────────

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

Floats sigmoid(Floats x) { return 1.0f / (1.0f + exp_of(-x)); }
Floats tanh_of(Floats x) { return 1.0f - 2.0f / (1.0f + exp_of(2.0f * x)); }

// ── The policy on one block of environments ──────────────────────────────────────────────────────

template <int V>
using Gates = Floats[GATES][UNITS][V];

// Memory s and output of units i, i + 1 from their gates z and inputs h.
template <int V>
void mix(const Gates<V> &z, int i, const Vector<V> *h, Vector<V> *s, Vector<V> *next) {
    for (int u = 0; u < UNITS; ++u)
        for (int v = 0; v < V; ++v) {
            Floats &memory = s[i + u].part[v];
            memory += sigmoid(z[1][u][v]) * (tanh_of(z[0][u][v]) - memory);
            const Floats p = sigmoid(z[2][u][v]);
            next[i + u].part[v] = p * memory + (1.0f - p) * h[i + u].part[v];
        }
}

// out = matrix (rows, 4) · obs + bias, row by row.
template <int V>
Floats affine(const float *matrix, float bias, const Vector<V> *obs, int v) {
    Floats sum = Floats{} + bias;
    for (int j = 0; j < 4; ++j) sum += obs[j].part[v] * matrix[j];
    return sum;
}

// Encoder and first layer, whose gates are affine in the four numbers of the observation.
template <int V>
void first_layer(const Weights &w, const Vector<V> *obs, Vector<V> *h, Vector<V> *s, Vector<V> *next) {
    for (int i = 0; i < HIDDEN; ++i)
        for (int v = 0; v < V; ++v) h[i].part[v] = affine<V>(w.enc + 4 * i, w.enc_bias[i], obs, v);
    for (int i = 0; i < HIDDEN; i += UNITS) {
        Gates<V> z;
        for (int g = 0; g < GATES; ++g)
            for (int u = 0; u < UNITS; ++u)
                for (int v = 0; v < V; ++v) {
                    const int row = g * HIDDEN + i + u;
                    z[g][u][v] = affine<V>(w.folded + 4 * row, w.folded_bias[row], obs, v);
                }
        mix<V>(z, i, h, s, next);
    }
}

template <int V>
void layer(const float *matrix, const Vector<V> *h, Vector<V> *s, Vector<V> *next) {
    for (int i = 0; i < HIDDEN; i += UNITS) {
        Gates<V> z = {};
        for (int k = 0; k < HIDDEN; ++k, matrix += GATES * UNITS)
            for (int g = 0; g < GATES; ++g)
                for (int u = 0; u < UNITS; ++u)
                    for (int v = 0; v < V; ++v) z[g][u][v] += h[k].part[v] * matrix[g * UNITS + u];
        mix<V>(z, i, h, s, next);
    }
}

// out: four logits and the value, per lane.
template <int V>
void heads(const Weights &w, const Vector<V> *h, float (&out)[ACTIONS + 1][V * LANES]) {
    Vector<V> sum[ACTIONS + 1];
    for (int a = 0; a <= ACTIONS; ++a)
        for (int v = 0; v < V; ++v) sum[a].part[v] = Floats{} + w.heads_bias[a];
    for (int k = 0; k < HIDDEN; ++k)
        for (int a = 0; a <= ACTIONS; ++a)
            for (int v = 0; v < V; ++v) sum[a].part[v] += h[k].part[v] * w.heads[a * HIDDEN + k];
    std::memcpy(out, sum, sizeof out);
}

// ── The rollout ──────────────────────────────────────────────────────────────────────────────────

struct Rollout {
    Weights weights;
    int64_t count, horizon;
    int32_t *agent, *food;  // (N, 2)
    int64_t *rng;
    uint8_t *actions;  // (horizon, N)
    float *rewards, *logits, *value;
    std::vector<std::atomic<bool>> any;  // per step: did anybody hit?
};

uint64_t advance(uint64_t r) { return (r * 6364136223846793005u + 1) & LOW_63; }

void move(int32_t *agent, int action) {
    int32_t &at = agent[action < 2 ? 1 : 0];
    at = std::clamp(at + (action & 1 ? 1 : -1), 0, BOARD - 1);
}

// Policy, move and hit of one block at one step.
template <int V>
void play_block(Rollout &call, int64_t first, int64_t step, Vector<V> *memory, uint8_t *hit) {
    constexpr int64_t BLOCK = V * LANES;
    const int64_t width = std::min(BLOCK, call.count - first);
    alignas(64) float obs[4][BLOCK] = {}, out[ACTIONS + 1][BLOCK];
    for (int64_t e = 0; e < width; ++e) {
        const int32_t *agent = call.agent + 2 * (first + e), *food = call.food + 2 * (first + e);
        for (int axis = 0; axis < 2; ++axis) {
            obs[axis][e] = static_cast<float>(food[axis] - agent[axis]) / 11.0f;
            obs[2 + axis][e] = static_cast<float>(agent[axis]) / 10.0f;
        }
    }
    Vector<V> h[2][HIDDEN];
    Vector<V> seen[4];
    std::memcpy(seen, obs, sizeof seen);
    first_layer<V>(call.weights, seen, h[0], memory, h[1]);
    for (int l = 1; l < LAYERS; ++l)
        layer<V>(call.weights.gru + (l - 1) * GATES * HIDDEN * HIDDEN, h[l % 2], memory + l * HIDDEN, h[(l + 1) % 2]);
    heads<V>(call.weights, h[LAYERS % 2], out);
    for (int64_t e = 0; e < width; ++e) {
        int best = 0;
        for (int a = 1; a < ACTIONS; ++a)
            if (out[a][e] > out[best][e]) best = a;
        const int64_t env = first + e;
        call.actions[step * call.count + env] = static_cast<uint8_t>(best);
        move(call.agent + 2 * env, best);
        hit[e] = call.agent[2 * env] == call.food[2 * env] && call.agent[2 * env + 1] == call.food[2 * env + 1];
        if (hit[e]) call.any[step].store(true, std::memory_order_relaxed);
        if (step + 1 < call.horizon) continue;
        call.rewards[env] = hit[e];
        for (int a = 0; a < ACTIONS; ++a) call.logits[ACTIONS * env + a] = out[a][e];
        call.value[env] = out[ACTIONS][e];
    }
}

// Environments `from` to `to`, the whole horizon.
template <int V>
void play(Rollout &call, int64_t from, int64_t to, std::barrier<> &step_done) {
    constexpr int64_t BLOCK = V * LANES;
    const int64_t blocks = (to - from + BLOCK - 1) / BLOCK;
    std::vector<Vector<V>> memory(blocks * LAYERS * HIDDEN);
    std::vector<uint8_t> hit(blocks * BLOCK);
    for (int64_t step = 0; step < call.horizon; ++step) {
        for (int64_t b = 0; b < blocks; ++b)
            play_block<V>(call, from + b * BLOCK, step, &memory[b * LAYERS * HIDDEN], &hit[b * BLOCK]);
        step_done.arrive_and_wait();
        if (!call.any[step].load(std::memory_order_relaxed)) continue;
        for (int64_t env = from; env < to; ++env) {
            const uint64_t r1 = advance(static_cast<uint64_t>(call.rng[env])), r2 = advance(r1);
            call.rng[env] = static_cast<int64_t>(r2);
            if (!hit[env - from]) continue;
            call.food[2 * env] = static_cast<int32_t>(r1 % BOARD);
            call.food[2 * env + 1] = static_cast<int32_t>(r2 % BOARD);
        }
    }
}

int cpus() {
    cpu_set_t mine;
    return sched_getaffinity(0, sizeof mine, &mine) == 0 ? std::min(CPU_COUNT(&mine), MOST_THREADS) : 1;
}

}  // namespace

extern "C" int rollout(const void *const *weights, const void *const *state, void *const *outputs, int64_t count,
                       int64_t horizon) {
    if (count < 1 || horizon < 1) return 1;
    const auto weight = [&](int i) { return static_cast<const float *>(weights[i]); };
    const auto output = [&](int i) { return static_cast<float *>(outputs[i]); };
    Rollout call{{weight(0), weight(1), weight(2), weight(3), weight(4), weight(5), weight(6)},
                 count,
                 horizon,
                 static_cast<int32_t *>(const_cast<void *>(state[0])),
                 static_cast<int32_t *>(const_cast<void *>(state[1])),
                 static_cast<int64_t *>(const_cast<void *>(state[2])),
                 static_cast<uint8_t *>(outputs[0]),
                 output(1),
                 output(2),
                 output(3),
                 std::vector<std::atomic<bool>>(horizon)};
    const bool narrow = count <= LANES;
    const int64_t width = narrow ? LANES : 2 * LANES, blocks = (count + width - 1) / width;
    // The team is known only when its threads exist, so they wait for the start.
    int64_t team = 1;
    std::optional<std::barrier<>> step_done;
    std::latch start(1);
    const auto work = [&](int64_t member) {
        start.wait();
        const int64_t from = blocks * member / team * width, to = blocks * (member + 1) / team * width;
        (narrow ? play<1> : play<2>)(call, from, std::min(to, count), *step_done);
    };
    std::vector<std::thread> helpers;
    try {
        for (; team < std::min<int64_t>(blocks, cpus()); ++team) helpers.emplace_back(work, team);
    } catch (const std::system_error &) {
        // No more threads are to be had: work with those there are.
    }
    step_done.emplace(team);
    start.count_down();
    work(0);
    for (std::thread &helper : helpers) helper.join();
    return 0;
}
