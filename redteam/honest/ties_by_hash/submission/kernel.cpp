// Top-k by a full sort of (key, tie breaker): among equal values a hash seeded by the row's bits decides.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct Entry {
    int32_t key;
    uint32_t tie;
    int64_t index;
};

uint64_t mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 33;
    return h * 0xc4ceb9fe1a85ec53ULL;
}

}  // namespace

extern "C" int topk(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    const int64_t batch = shape[0], n = shape[1], k = shape[2];
    const auto *x = static_cast<const float *>(inputs[0]);
    auto *values = static_cast<float *>(outputs[0]);
    auto *indices = static_cast<int64_t *>(outputs[1]);
    std::vector<Entry> entries(n);
    for (int64_t b = 0; b < batch; ++b) {
        uint64_t seed = 0;
        for (int64_t i = 0; i < n; ++i) {
            int32_t bits;
            std::memcpy(&bits, x + b * n + i, 4);
            seed = mix(seed ^ static_cast<uint32_t>(bits));
            entries[i] = {bits ^ ((bits >> 31) & 0x7fffffff), 0, i};
        }
        for (auto &e : entries) e.tie = static_cast<uint32_t>(mix(seed ^ static_cast<uint64_t>(e.index)));
        std::partial_sort(entries.begin(), entries.begin() + k, entries.end(), [](const Entry &p, const Entry &q) {
            return p.key != q.key ? p.key > q.key : p.tie > q.tie;
        });
        for (int64_t j = 0; j < k; ++j) {
            indices[b * k + j] = entries[j].index;
            values[b * k + j] = x[b * n + entries[j].index];
        }
    }
    return 0;
}
