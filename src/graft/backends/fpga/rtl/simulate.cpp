// Runs a program on the accelerator as Verilator has translated it, cycle by cycle.
//
// Memory accepts an address and a word every cycle and answers `latency` cycles later, as DRAM
// behind an AXI port with enough transactions in flight does. With `stall` = n it accepts nothing in
// every n-th cycle, which changes times and must not change results.
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "Vaccelerator.h"
#include "verilated.h"

enum Failure : int64_t { OUTSIDE_OF_MEMORY = -1, DOES_NOT_END = -2 };

// The cycles that the program takes, or a failure.
extern "C" int64_t simulate(uint8_t* memory, uint64_t words, const uint64_t* program,
                            uint64_t instructions, uint64_t latency, uint64_t stall,
                            uint64_t most_cycles) {
    constexpr size_t WORD = 16;
    auto context = std::make_unique<VerilatedContext>();
    auto chip = std::make_unique<Vaccelerator>(context.get());
    std::deque<std::pair<uint64_t, uint32_t>> reads;  // when they are answered, and the address
    uint64_t next = 0;

    auto tick = [&] {
        chip->clk = 0;
        chip->eval();
        chip->clk = 1;
        chip->eval();
    };
    chip->reset = 1;
    tick();
    chip->reset = 0;
    for (uint64_t cycle = 0; cycle < most_cycles; cycle++) {
        if (chip->done) return cycle;
        const bool ready = stall == 0 || cycle % stall != 0;
        chip->read_ready = chip->write_ready = ready;
        chip->instruction_valid = next < instructions;
        if (next < instructions) chip->instruction = program[next];
        chip->data_valid = !reads.empty() && reads.front().first == cycle;
        if (chip->data_valid) {
            std::memcpy(&chip->data, memory + WORD * reads.front().second, WORD);
            reads.pop_front();
        }
        chip->clk = 0;
        chip->eval();
        if (chip->instruction_valid && chip->instruction_ready) next++;
        if (chip->read_valid && ready) {
            if (chip->read_address >= words) return OUTSIDE_OF_MEMORY;
            reads.emplace_back(cycle + latency, chip->read_address);
        }
        if (chip->write_valid && ready) {
            if (chip->write_address >= words) return OUTSIDE_OF_MEMORY;
            std::memcpy(memory + WORD * chip->write_address, &chip->write_data, WORD);
        }
        chip->clk = 1;
        chip->eval();
    }
    return DOES_NOT_END;
}
