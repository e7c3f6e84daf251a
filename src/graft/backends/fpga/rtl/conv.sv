// The compute unit: walks over the pixels of a result for each tap of a kernel and each block of 16
// input channels, sends what lies under the tap through the array, and adds up what comes out.
//
//   for block, for ky, for kx:                          one weight tile, 16 rows
//     for y, for x of the result:                       one pixel a cycle
//       accumulator[y, x] (+)= SCALE * array(image[block, y * stride + ky * dilation, ...])
//
// A tile takes max(PIXELS, 16) cycles, in which the weights of the next are loaded as well.
module conv
    import isa::*;
(
    input  logic                clk,
    input  logic                reset,
    input  logic                start,
    output logic                busy,
    input  logic [31:0]         regs[REGISTERS],
    output logic [ACT_BITS-1:0] act_address,
    input  word_t               act_data,
    output logic [WGT_BITS-1:0] wgt_address,
    input  word_t               wgt_data,
    output logic [ACC_BITS-1:0] acc_read_address,
    input  acc_t                acc_read_data,
    output logic                acc_write,
    output logic [ACC_BITS:0]   acc_write_address,
    output acc_t                acc_write_data
);
    localparam int LATENCY = 2 * LANES - 1;  // of the array
    localparam bit [15:0] DRAIN = 16'(LATENCY) + 3;  // from the last pixel's address to its accumulator

    typedef enum logic [1:0] {IDLE, FILL, TILES, EMPTY} phase_t;
    phase_t phase;
    assign busy = phase != IDLE;

    // Within a tile: pixel (x, y), the coordinates and the address that it reads.
    logic [15:0] slot, column;
    logic signed [15:0] x, y;
    logic [ACT_BITS-1:0] address, row_address;
    // The tile: tap (kx, ky) of a block, where the first pixel reads for it, and for kx = 0 and
    // for kx = ky = 0.
    logic [15:0] kx, ky, block;
    logic signed [15:0] tap_x, tap_y;
    logic [ACT_BITS-1:0] tap_address, line_address, block_address;
    logic is_first;

    wire [15:0] pixels = regs[PIXELS][15:0];
    wire [15:0] slots = phase == EMPTY ? DRAIN : phase == FILL || pixels < 16 ? 16'd16 : pixels;
    wire ends_slot = slot == slots - 1;
    wire ends_row = column == regs[OUT_SIZE][15:0] - 1;
    wire ends_line = kx == regs[KERNEL][15:0] - 1;
    wire ends_block = ends_line && ky == regs[KERNEL][31:16] - 1;
    wire is_last = ends_block && block == regs[BLOCKS][15:0] - 1;

    // The next tile.
    logic signed [15:0] next_x, next_y;
    logic [ACT_BITS-1:0] next_address;
    always_comb begin
        next_x = regs[ORIGIN][15:0];
        next_y = tap_y;
        if (!ends_line) begin
            next_x = tap_x + regs[DILATION][15:0];
            next_address = tap_address + regs[DILATION][ACT_BITS-1:0];
        end else if (!ends_block) begin
            next_y = tap_y + regs[DILATION][31:16];
            next_address = line_address + regs[TAP_STEP][ACT_BITS-1:0];
        end else begin
            next_y = regs[ORIGIN][31:16];
            next_address = block_address + regs[PLANE][ACT_BITS-1:0];
        end
    end

    wire streams = phase == TILES && slot < pixels;
    wire loads = (phase == FILL || (phase == TILES && !is_last)) && slot < 16;
    wire is_inside = x >= 0 && x < $signed(regs[IN_SIZE][15:0])
                  && y >= 0 && y < $signed(regs[IN_SIZE][31:16]);
    assign act_address = address;

    always_ff @(posedge clk) begin
        slot <= ends_slot ? 0 : slot + 1;
        if (loads) wgt_address <= wgt_address + 1;
        if (streams) begin
            if (ends_row) begin
                column <= 0;
                x <= tap_x;
                y <= y + regs[STRIDES][31:16];
                address <= row_address + regs[STRIDE_STEP][ACT_BITS-1:0];
                row_address <= row_address + regs[STRIDE_STEP][ACT_BITS-1:0];
            end else begin
                column <= column + 1;
                x <= x + regs[STRIDES][15:0];
                address <= address + regs[STRIDES][ACT_BITS-1:0];
            end
        end
        unique case (phase)
            IDLE: if (start) begin
                phase <= FILL;
                slot <= 0;
                column <= 0;
                wgt_address <= regs[WGT][WGT_BITS-1:0];
                {kx, ky, block} <= '0;
                {tap_y, tap_x} <= regs[ORIGIN];
                {y, x} <= regs[ORIGIN];
                {address, row_address} <= {2{regs[ACT][ACT_BITS-1:0]}};
                {tap_address, line_address, block_address} <= {3{regs[ACT][ACT_BITS-1:0]}};
                is_first <= 1;
            end
            FILL: if (ends_slot) phase <= TILES;
            TILES: if (ends_slot) begin
                is_first <= 0;
                if (is_last) phase <= EMPTY;
                kx <= ends_line ? 0 : kx + 1;
                if (ends_line) begin
                    ky <= ends_block ? 0 : ky + 1;
                    line_address <= next_address;
                end
                if (ends_block) begin
                    block <= block + 1;
                    block_address <= next_address;
                end
                {tap_x, tap_y, tap_address} <= {next_x, next_y, next_address};
                {x, y, address, row_address} <= {next_x, next_y, next_address, next_address};
                column <= 0;
            end
            EMPTY: if (ends_slot) phase <= IDLE;
        endcase
        if (reset) phase <= IDLE;
    end

    // A cycle later the scratchpads answer.
    typedef struct packed {
        logic              valid;
        logic              fresh;  // starts a sum
        logic [ACC_BITS:0] address;
    } target_t;
    target_t target, summed, scaled;
    logic was_inside, was_first, was_loading;
    logic [3:0] row;
    always_ff @(posedge clk) begin
        target <= '{streams, is_first && !regs[MODE][0], regs[ACC][ACC_BITS:0] + slot[ACC_BITS:0]};
        was_inside <= is_inside;
        was_first <= streams && slot == 0;
        was_loading <= loads;
        row <= slot[3:0];
    end

    logic [LANES*SUM_BITS-1:0] sums;
    systolic array (
        .clk, .sums,
        .act(was_inside ? act_data : {LANES{regs[MODE][15:8]}}), .swap(was_first),
        .load(was_loading), .load_row(row), .weights(wgt_data)
    );
    delay #(.WIDTH($bits(target_t)), .CYCLES(LATENCY)) follow (.clk, .in(target), .out(summed));

    // Sums are scaled while their accumulators are read, then added and written. The same
    // accumulator comes again 16 cycles later at the earliest.
    assign acc_read_address = summed.address[ACC_BITS-1:0];
    assign acc_write = scaled.valid;
    assign acc_write_address = scaled.address;
    always_ff @(posedge clk) scaled <= summed;
    for (genvar c = 0; c < LANES; c++) begin : gen_lane
        wire signed [SUM_BITS-1:0] sum = sums[SUM_BITS*c+:SUM_BITS];
        logic signed [31:0] product;
        always_ff @(posedge clk) product <= 32'(sum) * 32'($signed(regs[SCALE][23:0]));
        assign acc_write_data[32*c+:32] = product
            + (scaled.fresh ? 32'd0 : acc_read_data[32*c+:32]);
    end
endmodule
