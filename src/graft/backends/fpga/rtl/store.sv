// The way out: accumulators to bytes, and the write side of the DMA.
//
//   byte = clamp(round((sum + bias) * multiplier / 2**shift) + zero point, lowest, highest)
//
// with bias, multiplier (31 bits) and shift (0 to 62) of each channel, halves rounded to even. A
// word of 16 channels a cycle; all stages stop while memory does not accept one.
module store
    import isa::*;
(
    input  logic                clk,
    input  logic                reset,
    input  logic                start,
    output logic                busy,
    input  logic [31:0]         regs[REGISTERS],
    output logic [PAR_BITS-1:0] par_address,
    input  word_t               par_data,
    output logic                acc_read,
    output logic [ACC_BITS-1:0] acc_address,
    input  acc_t                acc_data,
    // Memory
    output logic                write_valid,
    input  logic                write_ready,
    output logic [31:0]         write_address,
    output word_t               write_data
);
    localparam int STAGES = 5;  // read, add the bias, multiply, shift, clamp
    localparam int PARAMETERS = 9;  // words: 4 of biases, 4 of multipliers, 1 of shifts

    logic [3:0] parameter_count, arrived;
    logic [15:0] issued;
    logic [STAGES-1:0] valid;  // what is in the stages
    word_t parameters[PARAMETERS];
    wire ready = !write_valid || write_ready;
    wire has_parameters = arrived == 4'(PARAMETERS);
    wire issues = busy && has_parameters && issued != regs[STORE_COUNT][15:0];

    assign par_address = regs[STORE_PAR][PAR_BITS-1:0] + PAR_BITS'(parameter_count);
    assign acc_read = ready;
    assign acc_address = regs[STORE_FROM][ACC_BITS-1:0] + issued[ACC_BITS-1:0];
    assign write_valid = valid[STAGES-1];

    always_ff @(posedge clk) begin
        if (start) begin
            busy <= 1;
            {parameter_count, arrived, issued, valid} <= '0;
            write_address <= regs[STORE_TO];
        end else if (busy) begin
            if (parameter_count != 4'(PARAMETERS)) parameter_count <= parameter_count + 1;
            arrived <= parameter_count;
            if (!has_parameters) parameters[arrived] <= par_data;
            if (ready) begin
                valid <= {valid[STAGES-2:0], issues};
                if (issues) issued <= issued + 1;
            end
            if (write_valid && write_ready) write_address <= write_address + 1;
            if (has_parameters && !issues && valid == 0) busy <= 0;
        end
        if (reset) {busy, valid} <= '0;
    end

    for (genvar c = 0; c < LANES; c++) begin : gen_lane
        wire signed [31:0] bias = parameters[c/4][32*(c%4)+:32];
        wire signed [31:0] multiplier = parameters[4+c/4][32*(c%4)+:32];
        wire [5:0] shift = parameters[8][8*c+:6];
        logic signed [31:0] sum;
        logic signed [63:0] product, quotient;

        // Just below a half is added, or just a half where the result would be odd.
        wire signed [63:0] half = 64'sd1 <<< (shift - 1);
        wire signed [63:0] rounding = shift == 0 ? 0 : half - 1 + {63'b0, product[shift]};
        wire signed [63:0] code = quotient + 64'($signed(regs[STORE_FORM][7:0]));
        wire signed [63:0] lowest = 64'($signed(regs[STORE_FORM][15:8]));
        wire signed [63:0] highest = 64'($signed(regs[STORE_FORM][23:16]));

        always_ff @(posedge clk) if (ready) begin
            sum <= $signed(acc_data[32*c+:32]) + bias;
            product <= 64'(sum) * 64'(multiplier);
            quotient <= (product + rounding) >>> shift;
            write_data[8*c+:8] <= 8'(code < lowest ? lowest : code > highest ? highest : code)
                                  ^ {regs[STORE_FORM][24], 7'b0};
        end
    end
endmodule
