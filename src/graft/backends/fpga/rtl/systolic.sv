// 16 x 16 processing elements, weight-stationary. Row r multiplies input channel r, column c sums up output
// channel c; the sums of a pixel come out together, 31 cycles after its activations went in.
//
// Everything is skewed alike: row r sees a pixel r cycles after row 0, column c c cycles after
// column 0, and so it is with weights, of which a row comes in each cycle. A tile may hence be loaded
// while the one before is in use, down to the cycle: row 0 of the next tile may come with the first
// pixel of the tile before it, and pixels of a tile from the cycle after its row 0.
module systolic
    import isa::*;
(
    input  logic                        clk,
    input  word_t                       act,       // a pixel
    input  logic                        swap,      // it is the first of a tile
    input  logic                        load,      // `weights` are row `load_row` of the next tile
    input  logic [3:0]                  load_row,
    input  word_t                       weights,
    output logic [LANES*SUM_BITS-1:0]   sums
);
    // Wires between the elements: [r][c] enters element (r, c).
    logic                       loads  [LANES][LANES+1];
    logic                       swaps  [LANES][LANES+1];
    logic signed [7:0]          acts   [LANES][LANES+1];
    logic signed [SUM_BITS-1:0] partial[LANES+1][LANES];
    logic signed [7:0]          column [LANES];

    for (genvar r = 0; r < LANES; r++) begin : gen_row
        assign loads[r][0] = load && load_row == 4'(r);
        delay #(.WIDTH(9), .CYCLES(r)) skew (
            .clk, .in({swap, act[8*r+:8]}), .out({swaps[r][0], acts[r][0]})
        );
        for (genvar c = 0; c < LANES; c++) begin : gen_pe
            pe element (
                .clk,
                .load_in(loads[r][c]), .load_out(loads[r][c+1]),
                .swap_in(swaps[r][c]), .swap_out(swaps[r][c+1]),
                .act_in(acts[r][c]), .act_out(acts[r][c+1]),
                .weight(column[c]),
                .sum_in(partial[r][c]), .sum_out(partial[r+1][c])
            );
        end
        wire unused = &{loads[r][LANES], swaps[r][LANES], acts[r][LANES]};
    end

    for (genvar c = 0; c < LANES; c++) begin : gen_column
        assign partial[0][c] = '0;
        delay #(.WIDTH(8), .CYCLES(c)) skew (.clk, .in(weights[8*c+:8]), .out(column[c]));
        delay #(.WIDTH(SUM_BITS), .CYCLES(LANES-1-c)) align (
            .clk, .in(partial[LANES][c]), .out(sums[SUM_BITS*c+:SUM_BITS])
        );
    end
endmodule
