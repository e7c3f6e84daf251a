/* Caches of one core, exactly: sets of lines in the order of their last use, written back when
 * they go. Last caches keep no such order: of 36 MiB that are read again and again, a Zen 5's of
 * 32 MiB has two thirds, of 64 MiB two fifths; there any line of a set may go. Instrumented kernels
 * leave the addresses of a basic block's accesses in `slots` and call `touch` with the block's
 * number; what moves between levels is counted by block: what loads wait for, what prefetches and
 * what stores ask for, and what is written back. Of what loads wait for, it is noted which lines no
 * prefetcher of the first cache foresees, since the instruction does not go on in steps; of what
 * loads and stores ask for, how much it was in each window of WINDOW runs of the block, since
 * transfers in bursts are not hidden by code that runs long before or after.
 *
 * Given the cycles of each block's runs, time goes on with them. What prefetches ask for queues up
 * behind a level for as long as a core's buffers hold it; code waits for what is beyond. Code itself
 * comes through the caches when a kernel is called: the first cache has forgotten it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LINE 6
#define LEVELS 4
#define LONGEST_STEP 32 /* lines that a prefetcher foresees a step of */
#define IN_FLIGHT 48 /* lines that a core waits for at once beyond its second cache: machine.py */
#define FIRST_RANDOM 2 /* of the levels of caches that do not evict in the order of last use */
#define CODE (1ull << 48) /* the first line of all kernels' code, which no data lie at */

typedef struct { uint64_t mask; int ways; uint64_t *lines; } level; /* line * 2 + written */
typedef struct { int32_t size, written, posted, level; } access_kind;
typedef struct { uint64_t line; int64_t step; } stride; /* of an instruction's last two lines */

static level caches[LEVELS];
static int count;
uint64_t slots[4096];
static const int64_t *first_access; /* by block, and one more */
static const access_kind *kinds;
static stride *strides;
static int64_t *runs; /* by block */
static int64_t *waited, *posted, *stored, *scattered, *evicted; /* by block and level: lines */
static int64_t *fetched; /* of code */
static int64_t *starts; /* first runs of a call that wait for a line from there */

typedef struct { int32_t kernel, is_first, line, lines; } code_of; /* a block's; lines of code */
static const code_of *codes;
static const double *line_cycles; /* by level */
static const double *paces; /* cycles of a run, by block */
static double *stalls; /* cycles by block and level */
static int64_t *calls, *seen; /* of kernels, and the last call that a block ran in */
static double now, queues[LEVELS];

/* By window and level, lines that loads ask for, then those that stores do. */
typedef struct { int64_t count, room; int32_t *lines; } bursts;
static bursts *windows;
static int64_t blocks;

void setup(int levels, const int64_t *sets, const int64_t *ways, const int64_t *first,
           const access_kind *all, int64_t *run_counts, int64_t *lines, const code_of *code,
           const double *cycles, const double *pace, double *stalled, int64_t block_count) {
    for (int i = 0; i < count; i++) free(caches[i].lines);
    for (int64_t n = 0; n < blocks; n++) free(windows[n].lines);
    windows = realloc(windows, (blocks = block_count) * sizeof *windows + 1);
    memset(windows, 0, blocks * sizeof *windows);
    count = levels;
    for (int i = 0; i < levels; i++) {
        caches[i].mask = sets[i] - 1;
        caches[i].ways = ways[i];
        caches[i].lines = malloc(sets[i] * ways[i] * sizeof(uint64_t));
        for (int64_t n = 0; n < sets[i] * ways[i]; n++) caches[i].lines[n] = ~1ull;
    }
    first_access = first, kinds = all, runs = run_counts;
    waited = lines, posted = waited + blocks * LEVELS;
    stored = posted + blocks * LEVELS, scattered = stored + blocks * LEVELS;
    evicted = scattered + blocks * LEVELS, fetched = evicted + blocks * LEVELS;
    starts = fetched + blocks * LEVELS;
    codes = code, line_cycles = cycles, paces = pace, stalls = stalled;
    free(calls), free(seen);
    calls = calloc(blocks + 1, sizeof *calls), seen = calloc(blocks + 1, sizeof *seen);
    strides = realloc(strides, (first[blocks] + 1) * sizeof *strides);
    memset(strides, 0, (first[blocks] + 1) * sizeof *strides);
}

/* The way of a set that a new line takes: one that is free, or any in the last caches, or that of
 * the line that was used least recently. */
static int victim_of(int at, const uint64_t *set) {
    static uint32_t random = 1;
    int ways = caches[at].ways, way = 0;
    if (at < FIRST_RANDOM) return ways - 1;
    while (way < ways && set[way] != ~1ull) way++;
    if (way < ways) return way;
    random ^= random << 13, random ^= random >> 17, random ^= random << 5;
    return random % ways;
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
        way = victim_of(at, set);
        uint64_t victim = set[way];
        if (victim != ~1ull && victim & 1) {
            freed[at]++;
            use(at + 1, victim >> 1, 1, 1, freed, freed);
        }
        if (!whole) {
            filled[at]++;
            use(at + 1, line, 0, 0, filled, freed);
        }
    }
    if (at >= FIRST_RANDOM) {
        set[way] = entry;
        return;
    }
    for (; way > 0; way--) set[way] = set[way - 1];
    set[0] = entry;
}

int64_t bursts_of(int64_t block, const int32_t **lines) {
    *lines = windows[block].lines;
    return windows[block].count;
}

void forget_bursts(void) {
    for (int64_t n = 0; n < blocks; n++) windows[n].count = 0;
}

/* Add what a run of a block has asked for to its last window, or begin the next one. */
static void note_burst(bursts *one, int64_t run, const int64_t *before, const int64_t *loaded,
                       const int64_t *written) {
    if (run % WINDOW == 0) {
        if (one->count == one->room) {
            one->room = 2 * one->room + 64;
            one->lines = realloc(one->lines, one->room * 2 * LEVELS * sizeof *one->lines);
        }
        memset(one->lines + one->count++ * 2 * LEVELS, 0, 2 * LEVELS * sizeof *one->lines);
    }
    int32_t *lines = one->lines + (one->count - 1) * 2 * LEVELS;
    for (int i = 0; i < LEVELS; i++) {
        lines[i] += loaded[i] - before[i];
        lines[LEVELS + i] += written[i] - before[LEVELS + i];
    }
}

/* Whether an instruction comes to a line in the step that it made before, or in the same line. */
static int is_foreseen(stride *one, uint64_t line) {
    int64_t step = line - one->line, before = one->step;
    if (!step) return 1;
    one->line = line, one->step = step;
    return step == before && llabs(step) <= LONGEST_STEP;
}

/* Bring a block's code to the first cache where it runs for the first time in a call; whether it
 * does. */
static int fetch(int32_t block, int64_t *freed) {
    const code_of *code = codes + block;
    calls[code->kernel] += code->is_first;
    if (seen[block] == calls[code->kernel]) return 0;
    seen[block] = calls[code->kernel];
    for (int32_t n = 0; n < code->lines; n++)
        use(1, CODE + code->line + n, 0, 0, fetched + block * LEVELS, freed);
    return 1;
}

/* Count the level that a block's first run in a call waits for a line from: its data, or the code
 * that a call jumps to. Tables of addresses, which a call begins with, lie in the order of calls. */
static void note_start(int32_t block, const int64_t *lines, const int64_t *before) {
    int deepest = count - 1;
    while (deepest && lines[deepest] == before[deepest]) deepest--;
    starts[block * LEVELS + deepest] += deepest > 0;
}

/* Queue what prefetches have asked for behind each level from the second cache on, and wait where
 * there is more than goes on beside the block itself and is in flight then. */
static void wait_for_queues(int32_t block, const int64_t *before) {
    for (int i = 1; i < count; i++) {
        int64_t lines = posted[block * LEVELS + i] - before[i];
        if (!lines) continue;
        double cycles = line_cycles[i];
        queues[i] = (queues[i] > now ? queues[i] : now) + lines * cycles;
        double late = queues[i] - now - paces[block] - IN_FLIGHT * cycles;
        if (late > 0) stalls[block * LEVELS + i] += late, now += late;
    }
}

void touch(int32_t block) {
    int64_t *loaded = waited + block * LEVELS, *written = stored + block * LEVELS;
    int64_t *freed = evicted + block * LEVELS, before[2 * LEVELS], asked[LEVELS];
    for (int i = 0; i < LEVELS; i++) {
        before[i] = loaded[i], before[LEVELS + i] = written[i];
        asked[i] = posted[block * LEVELS + i];
    }
    int64_t *code = fetched + block * LEVELS, earlier[LEVELS];
    memcpy(earlier, codes[block].is_first ? code : loaded, sizeof earlier);
    int is_start = fetch(block, freed);
    for (int64_t n = first_access[block], slot = 0; n < first_access[block + 1]; n++, slot++) {
        uint64_t from = slots[slot] >> LINE, to = (slots[slot] + kinds[n].size - 1) >> LINE;
        int64_t *filled = kinds[n].posted ? posted + block * LEVELS : loaded;
        if (kinds[n].written) filled = written;
        int64_t misses = loaded[0];
        for (uint64_t line = from; line <= to; line++)
            use(kinds[n].level, line, kinds[n].written, 0, filled, freed);
        if (!is_foreseen(strides + n, to)) scattered[block * LEVELS] += loaded[0] - misses;
    }
    if (is_start) note_start(block, codes[block].is_first ? code : loaded, earlier);
    wait_for_queues(block, asked);
    now += paces[block];
    note_burst(windows + block, runs[block]++, before, loaded, written);
}
