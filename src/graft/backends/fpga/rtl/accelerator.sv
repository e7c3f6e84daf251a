// The accelerator: a queue of instructions, a sequencer that hands them to three units, and the
// memories between these. LOAD, CONV and STORE run side by side; the sequencer goes on to the next
// instruction at once, so that a program loads the next tile while it computes one.
//
// Ports are those of one AXI4-Stream (instructions) and of the read and write channels of one AXI4
// master of 128 bits, without bursts: an address a word. LOAD reads, STORE writes.
module accelerator
    import isa::*;
(
    input  logic        clk,
    input  logic        reset,
    output logic        done,
    // Instructions
    input  logic        instruction_valid,
    output logic        instruction_ready,
    input  logic [63:0] instruction,
    // Memory, read
    output logic        read_valid,
    input  logic        read_ready,
    output logic [31:0] read_address,
    input  logic        data_valid,
    input  word_t       data,
    // Memory, write
    output logic        write_valid,
    input  logic        write_ready,
    output logic [31:0] write_address,
    output word_t       write_data
);
    // The queue
    localparam int QUEUE_BITS = 4;
    logic [63:0] queue[1<<QUEUE_BITS];
    logic [QUEUE_BITS:0] head, tail;
    wire is_empty = head == tail;
    assign instruction_ready = (tail - head) != {1'b1, {QUEUE_BITS{1'b0}}};

    // The sequencer
    logic [31:0] regs[REGISTERS];
    logic [2:0] busy;  // STORE, CONV, LOAD
    wire [63:0] next = queue[head[QUEUE_BITS-1:0]];
    wire [7:0] opcode = next[63:56];
    wire [4:0] register = next[52:48];
    wire unused = &{next[55:53], next[47:32]};
    logic [2:0] needed;  // units that have to be idle
    always_comb begin
        unique case (opcode)
            SET: needed = register >= STORE_FROM ? 3'b100 : register >= ACT ? 3'b010 : 3'b001;
            LOAD: needed = 3'b001;
            CONV: needed = 3'b010;
            STORE: needed = 3'b100;
            WAIT: needed = next[2:0];
            default: needed = 3'b111;
        endcase
    end
    wire executes = !is_empty && !done && (busy & needed) == 0;

    always_ff @(posedge clk) begin
        if (instruction_valid && instruction_ready) begin
            queue[tail[QUEUE_BITS-1:0]] <= instruction;
            tail <= tail + 1;
        end
        if (executes) begin
            head <= head + 1;
            if (opcode == SET) regs[register] <= next[31:0];
            if (opcode == STOP) done <= 1;
        end
        if (reset) {head, tail, done} <= '0;
    end

    // The units and their memories
    logic write_act, write_wgt, write_par, acc_write, acc_store_read;
    logic [12:0] load_address;
    word_t load_data, act_data, wgt_data, par_data;
    logic [ACT_BITS-1:0] act_address;
    logic [WGT_BITS-1:0] wgt_address;
    logic [PAR_BITS-1:0] par_address;
    logic [ACC_BITS-1:0] acc_read_address, acc_store_address;
    logic [ACC_BITS:0] acc_write_address;
    acc_t acc_write_data, acc_data[2];
    wire conv_bank = regs[ACC][ACC_BITS], store_bank = regs[STORE_FROM][ACC_BITS];

    load load_unit (
        .clk, .reset, .start(executes && opcode == LOAD), .busy(busy[0]), .regs,
        .read_valid, .read_ready, .read_address, .data_valid, .data,
        .write_act, .write_wgt, .write_par, .write_address(load_address), .write_data(load_data)
    );
    conv conv_unit (
        .clk, .reset, .start(executes && opcode == CONV), .busy(busy[1]), .regs,
        .act_address, .act_data, .wgt_address, .wgt_data,
        .acc_read_address, .acc_read_data(acc_data[conv_bank]),
        .acc_write, .acc_write_address, .acc_write_data
    );
    store store_unit (
        .clk, .reset, .start(executes && opcode == STORE), .busy(busy[2]), .regs,
        .par_address, .par_data,
        .acc_read(acc_store_read), .acc_address(acc_store_address), .acc_data(acc_data[store_bank]),
        .write_valid, .write_ready, .write_address, .write_data
    );

    ram #(.BITS(ACT_BITS)) activations (
        .clk, .write(write_act), .write_address(load_address[ACT_BITS-1:0]), .write_data(load_data),
        .read(1'b1), .read_address(act_address), .read_data(act_data)
    );
    ram #(.BITS(WGT_BITS)) weights (
        .clk, .write(write_wgt), .write_address(load_address[WGT_BITS-1:0]), .write_data(load_data),
        .read(1'b1), .read_address(wgt_address), .read_data(wgt_data)
    );
    ram #(.BITS(PAR_BITS)) parameters (
        .clk, .write(write_par), .write_address(load_address[PAR_BITS-1:0]), .write_data(load_data),
        .read(1'b1), .read_address(par_address), .read_data(par_data)
    );
    // Two banks of accumulators: programs store from one while they compute into the other.
    for (genvar bank = 0; bank < 2; bank++) begin : gen_bank
        wire stores = busy[2] && store_bank == 1'(bank);
        ram #(.WIDTH(LANES * 32), .BITS(ACC_BITS)) accumulators (
            .clk,
            .write(acc_write && acc_write_address[ACC_BITS] == 1'(bank)),
            .write_address(acc_write_address[ACC_BITS-1:0]), .write_data(acc_write_data),
            .read(!stores || acc_store_read),
            .read_address(stores ? acc_store_address : acc_read_address),
            .read_data(acc_data[bank])
        );
    end
endmodule
