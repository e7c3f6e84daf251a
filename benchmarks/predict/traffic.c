/* Caches of one core, exactly: sets of lines in the order of their last use, written back when
 * they go. Instrumented kernels leave the addresses of a basic block's accesses in `slots` and call
 * `touch` with the block's number; what moves between levels is counted by block: what loads wait
 * for, and what is posted, since stores and prefetches wait for nothing. */
#include <stdint.h>
#include <stdlib.h>

#define LINE 6
#define LEVELS 4

typedef struct { uint64_t mask; int ways; uint64_t *lines; } level; /* line * 2 + written */
typedef struct { int32_t size, written, posted, level; } access_kind;

static level caches[LEVELS];
static int count;
uint64_t slots[4096];
static const int64_t *first_access; /* by block, and one more */
static const access_kind *kinds;
static int64_t *runs, *waited, *posted; /* by block; by block and level: lines up and down */

void setup(int levels, const int64_t *sets, const int64_t *ways, const int64_t *first,
           const access_kind *all, int64_t *run_counts, int64_t *loaded, int64_t *stored) {
    for (int i = 0; i < count; i++) free(caches[i].lines);
    count = levels;
    for (int i = 0; i < levels; i++) {
        caches[i].mask = sets[i] - 1;
        caches[i].ways = ways[i];
        caches[i].lines = malloc(sets[i] * ways[i] * sizeof(uint64_t));
        for (int64_t n = 0; n < sets[i] * ways[i]; n++) caches[i].lines[n] = ~1ull;
    }
    first_access = first, kinds = all, runs = run_counts, waited = loaded, posted = stored;
}

/* Bring a line into a level, from the one below unless it is `whole` already. Lines that come are
 * counted in `filled`, those that go in `freed`. */
static void use(int at, uint64_t line, int written, int whole, int64_t *filled, int64_t *freed) {
    if (at == count) return;
    uint64_t *set = caches[at].lines + (line & caches[at].mask) * caches[at].ways;
    int ways = caches[at].ways, way = 0;
    while (way < ways && set[way] >> 1 != line) way++;
    uint64_t entry = line * 2 + (written != 0);
    if (way < ways) {
        entry |= set[way] & 1;
    } else {
        uint64_t victim = set[--way];
        if (victim != ~1ull && victim & 1) {
            freed[at]++;
            use(at + 1, victim >> 1, 1, 1, freed, freed);
        }
        if (!whole) {
            filled[at]++;
            use(at + 1, line, 0, 0, filled, freed);
        }
    }
    for (; way > 0; way--) set[way] = set[way - 1];
    set[0] = entry;
}

void touch(int32_t block) {
    int64_t *freed = posted + block * LEVELS;
    runs[block]++;
    for (int64_t n = first_access[block], slot = 0; n < first_access[block + 1]; n++, slot++) {
        uint64_t from = slots[slot] >> LINE, to = (slots[slot] + kinds[n].size - 1) >> LINE;
        int64_t *filled = kinds[n].posted ? freed : waited + block * LEVELS;
        for (uint64_t line = from; line <= to; line++)
            use(kinds[n].level, line, kinds[n].written, 0, filled, freed);
    }
}
