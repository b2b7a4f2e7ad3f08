// Values and indices of the k largest entries of each row, descending: x (batch, n) float32 → values (batch, k) float32,
// indices (batch, k) int64.
//
// A row is read once by sixteen lanes; lane l sees the entries l, l + 16, l + 32, … Each lane keeps a short descending
// list of its best entries. One vector compare per sixteen entries tells whether any lane has to change its list, which
// soon becomes rare. At the end the sixteen lists are merged.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr int64_t LANES = 16;

struct Entry {
    float value;
    int64_t index;
};

bool larger(const Entry &a, const Entry &b) { return a.value > b.value; }

// What one lane keeps. k winners over sixteen lanes are k/16 per lane, and half of k leaves room for uneven rows.
int64_t depth(int64_t k) { return k / 2 + 2; }

class Lane {
  public:
    explicit Lane(int64_t room) : room_(room) { best_.reserve(room + 1); }

    void clear() { best_.clear(); }
    bool full() const { return static_cast<int64_t>(best_.size()) == room_; }
    // An entry must exceed this to enter a full list.
    float worst() const { return best_.back().value; }
    const std::vector<Entry> &best() const { return best_; }

    void offer(Entry e) {
        if (full()) {
            if (!(e.value > worst())) return;
            best_.pop_back();
        }
        best_.insert(std::upper_bound(best_.begin(), best_.end(), e, larger), e);
    }

  private:
    int64_t room_;
    std::vector<Entry> best_;
};

void select_row(const float *x, int64_t n, int64_t k, std::vector<Lane> &lanes, float *values, int64_t *indices) {
    for (Lane &lane : lanes) lane.clear();
    const int64_t warm_up = std::min(n, LANES * depth(k));
    for (int64_t i = 0; i < warm_up; ++i) lanes[i % LANES].offer({x[i], i});

    int64_t i = warm_up;
    if (i < n) {
        float bars[LANES];
        for (int64_t l = 0; l < LANES; ++l) bars[l] = lanes[l].worst();
        for (; i + LANES <= n; i += LANES) {
            int32_t above = 0;
            for (int64_t l = 0; l < LANES; ++l) above |= x[i + l] > bars[l];
            if (!above) continue;
            for (int64_t l = 0; l < LANES; ++l) {
                if (!(x[i + l] > bars[l])) continue;
                lanes[l].offer({x[i + l], i + l});
                bars[l] = lanes[l].worst();
            }
        }
        for (; i < n; ++i) lanes[i % LANES].offer({x[i], i});
    }

    std::vector<Entry> merged;
    for (const Lane &lane : lanes) merged.insert(merged.end(), lane.best().begin(), lane.best().end());
    std::partial_sort(merged.begin(), merged.begin() + k, merged.end(), larger);
    for (int64_t j = 0; j < k; ++j) {
        values[j] = merged[j].value;
        indices[j] = merged[j].index;
    }
}

}  // namespace

// inputs: {x}; outputs: {values, indices}; shape: {batch, n, k}. Returns 0, or 1 for a shape that it cannot serve.
extern "C" int topk(const void *const *inputs, void *const *outputs, const int64_t *shape) {
    const int64_t batch = shape[0], n = shape[1], k = shape[2];
    if (batch < 0 || k < 1 || n < k) return 1;
    const auto *x = static_cast<const float *>(inputs[0]);
    auto *values = static_cast<float *>(outputs[0]);
    auto *indices = static_cast<int64_t *>(outputs[1]);
    std::vector<Lane> lanes(LANES, Lane(depth(k)));
    for (int64_t b = 0; b < batch; ++b) select_row(x + b * n, n, k, lanes, values + b * k, indices + b * k);
    return 0;
}
