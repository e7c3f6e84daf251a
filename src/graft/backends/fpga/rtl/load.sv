// The read side of the DMA: runs of words from memory into a scratchpad, side by side.
// An address is issued every cycle that memory accepts one; data come back in order.
module load
    import isa::*;
(
    input  logic        clk,
    input  logic        reset,
    input  logic        start,
    output logic        busy,
    input  logic [31:0] regs[REGISTERS],
    // Memory
    output logic        read_valid,
    input  logic        read_ready,
    output logic [31:0] read_address,
    input  logic        data_valid,
    input  word_t       data,
    // Scratchpads
    output logic        write_act,
    output logic        write_wgt,
    output logic        write_par,
    output logic [12:0] write_address,
    output word_t       write_data
);
    logic [31:0] run_address;
    logic [15:0] word, run, awaited, received;
    logic issuing;
    wire ends_run = word == regs[LOAD_RUN][15:0] - 1;

    assign read_valid = issuing;
    assign write_act = data_valid && regs[LOAD_TO][15:14] == 0;
    assign write_wgt = data_valid && regs[LOAD_TO][15:14] == 1;
    assign write_par = data_valid && regs[LOAD_TO][15:14] == 2;
    assign write_address = regs[LOAD_TO][12:0] + received[12:0];
    assign write_data = data ^ {LANES{regs[LOAD_FLIP][0], 7'b0}};

    always_ff @(posedge clk) begin
        if (start) begin
            busy <= 1;
            issuing <= 1;
            {word, run, awaited, received} <= '0;
            {run_address, read_address} <= {2{regs[LOAD_FROM]}};
        end else if (busy) begin
            if (issuing && read_ready) begin
                awaited <= awaited + 1;
                word <= ends_run ? 0 : word + 1;
                read_address <= read_address + 1;
                if (ends_run) begin
                    run <= run + 1;
                    run_address <= run_address + regs[LOAD_STRIDE];
                    read_address <= run_address + regs[LOAD_STRIDE];
                    if (run == regs[LOAD_RUNS][15:0] - 1) issuing <= 0;
                end
            end
            if (data_valid) received <= received + 1;
            if (!issuing && received == awaited) busy <= 0;
        end
        if (reset) {busy, issuing} <= '0;
    end
endmodule
