// A processing element: one multiply-accumulate a cycle, with a weight in use and the next one in
// the shadow of it. Activations and tokens move right, sums move down.
module pe
    import isa::*;
(
    input  logic                       clk,
    input  logic                       load_in,   // take `weight` as the next one
    input  logic                       swap_in,   // with the first activation of the next tile
    input  logic signed [7:0]          act_in,
    input  logic signed [7:0]          weight,
    input  logic signed [SUM_BITS-1:0] sum_in,
    output logic                       load_out,
    output logic                       swap_out,
    output logic signed [7:0]          act_out,
    output logic signed [SUM_BITS-1:0] sum_out
);
    logic signed [7:0] current, next;
    wire signed [7:0] used = swap_in ? next : current;
    wire signed [15:0] product = 16'(act_in) * 16'(used);

    always_ff @(posedge clk) begin
        load_out <= load_in;
        swap_out <= swap_in;
        act_out  <= act_in;
        if (load_in) next <= weight;
        current <= used;
        sum_out <= sum_in + SUM_BITS'(product);
    end
endmodule
