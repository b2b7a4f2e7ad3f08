// MinGRU rollout: policy, then move, step by step; environments are worked on in blocks of 16, one lane each.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int H = 256, LAYERS = 3, B = 16, BOARD = 11;
constexpr uint64_t LCG = 6364136223846793005ULL, LOW_63 = (uint64_t{1} << 63) - 1;

struct Weights {
    const float *enc, *b_enc, *gru, *a, *b_a, *v, *b_v;
};

inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Operands of products rounded to an 11-bit significand, as TF32 does; sums stay in float32.
inline float operand(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    u = (u + 0xfff + ((u >> 13) & 1)) & ~uint32_t{0x1fff};
    std::memcpy(&x, &u, 4);
    return x;
}

// out[r][lane] = sum over c of w[r][c] * in[c][lane]
void product(const float *w, int rows, int columns, const float (*in)[B], float (*out)[B]) {
    for (int r = 0; r < rows; r += 4) {
        float sum[4][B] = {};
        for (int c = 0; c < columns; ++c)
            for (int i = 0; i < 4; ++i) {
                const float f = operand(w[(r + i) * columns + c]);
                for (int l = 0; l < B; ++l) sum[i][l] += f * in[c][l];
            }
        std::memcpy(out + r, sum, sizeof sum);
    }
}

struct Block {
    float s[LAYERS][H][B];
};

// One evaluation of the policy for 16 environments.
void policy(const Weights &w, const float (*obs)[B], Block &memory, float (*logits)[B], float *value) {
    static thread_local float h[H][B], rounded[H][B], z[3 * H][B];
    for (int r = 0; r < H; ++r)
        for (int l = 0; l < B; ++l) {
            float sum = 0;
            for (int c = 0; c < 4; ++c) sum += operand(w.enc[r * 4 + c]) * operand(obs[c][l]);
            h[r][l] = sum + w.b_enc[r];
        }
    const auto round_h = [&] {
        for (int r = 0; r < H; ++r)
            for (int l = 0; l < B; ++l) rounded[r][l] = operand(h[r][l]);
    };
    for (int layer = 0; layer < LAYERS; ++layer) {
        round_h();
        product(w.gru + layer * 3 * H * H, 3 * H, H, rounded, z);
        for (int r = 0; r < H; ++r)
            for (int l = 0; l < B; ++l) {
                float &s = memory.s[layer][r][l];
                s += sigmoid(z[H + r][l]) * (std::tanh(z[r][l]) - s);
                const float p = sigmoid(z[2 * H + r][l]);
                h[r][l] = p * s + (1 - p) * h[r][l];
            }
    }
    round_h();
    product(w.a, 4, H, rounded, logits);
    for (int i = 0; i < 4; ++i)
        for (int l = 0; l < B; ++l) logits[i][l] += w.b_a[i];
    for (int l = 0; l < B; ++l) {
        float sum = 0;
        for (int c = 0; c < H; ++c) sum += operand(w.v[c]) * rounded[c][l];
        value[l] = sum + w.b_v[0];
    }
}

struct State {
    int32_t *agent, *food;
    int64_t *rng;
};

// Moves every environment of the block; returns whether any hit its food.
bool act(const State &state, int64_t first, int count, const float (*logits)[B], uint8_t *actions, float *rewards) {
    bool any = false;
    for (int l = 0; l < count; ++l) {
        int best = 0;
        for (int i = 1; i < 4; ++i)
            if (logits[i][l] > logits[best][l]) best = i;
        int32_t *a = state.agent + 2 * (first + l);
        const int32_t *f = state.food + 2 * (first + l);
        actions[first + l] = static_cast<uint8_t>(best);
        a[best < 2] += best % 2 ? 1 : -1;
        a[best < 2] = std::clamp(a[best < 2], 0, BOARD - 1);
        const bool hit = a[0] == f[0] && a[1] == f[1];
        rewards[first + l] = hit;
        any |= hit;
    }
    return any;
}

void respawn(const State &state, int64_t n, const float *rewards) {
    for (int64_t e = 0; e < n; ++e) {
        const uint64_t r1 = (LCG * static_cast<uint64_t>(state.rng[e]) + 1) & LOW_63, r2 = (LCG * r1 + 1) & LOW_63;
        state.rng[e] = static_cast<int64_t>(r2);
        if (rewards[e] == 0) continue;
        state.food[2 * e] = static_cast<int32_t>(r1 % BOARD);
        state.food[2 * e + 1] = static_cast<int32_t>(r2 % BOARD);
    }
}

void rollout(const Weights &w, const State &state, int64_t n, int64_t horizon, uint8_t *actions, float *rewards, float *logits, float *value) {
    const int64_t blocks = (n + B - 1) / B;
    std::vector<Block> memory(blocks);
    std::memset(memory.data(), 0, blocks * sizeof(Block));
    for (int64_t t = 0; t < horizon; ++t) {
        bool any = false;
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t first = b * B;
            const int count = static_cast<int>(std::min<int64_t>(B, n - first));
            float obs[4][B] = {}, out[4][B], v[B];
            for (int l = 0; l < count; ++l) {
                const int32_t *a = state.agent + 2 * (first + l), *f = state.food + 2 * (first + l);
                for (int i = 0; i < 2; ++i) {
                    obs[i][l] = static_cast<float>(f[i] - a[i]) / 11.0f;
                    obs[2 + i][l] = static_cast<float>(a[i]) / 10.0f;
                }
            }
            policy(w, obs, memory[b], out, v);
            any |= act(state, first, count, out, actions + t * n, rewards);
            for (int l = 0; l < count; ++l) {
                value[first + l] = v[l];
                for (int i = 0; i < 4; ++i) logits[4 * (first + l) + i] = out[i][l];
            }
        }
        if (any) respawn(state, n, rewards);
    }
}

}  // namespace

// inputs: agent, food, rng, then w_enc, b_enc, w_gru, w_a, b_a, w_v, b_v; state tensors are updated in place by contract.
extern "C" int rollout_entry(const void *const *in, void *const *out, const int64_t *shape) {
    const auto f = [&](int i) { return static_cast<const float *>(in[i]); };
    const Weights w{f(3), f(4), f(5), f(6), f(7), f(8), f(9)};
    const State state{static_cast<int32_t *>(const_cast<void *>(in[0])), static_cast<int32_t *>(const_cast<void *>(in[1])),
                      static_cast<int64_t *>(const_cast<void *>(in[2]))};
    rollout(w, state, shape[0], shape[1], static_cast<uint8_t *>(out[0]), static_cast<float *>(out[1]),
            static_cast<float *>(out[2]), static_cast<float *>(out[3]));
    return 0;
}
