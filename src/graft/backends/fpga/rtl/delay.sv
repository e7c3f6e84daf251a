// What goes in comes out some cycles later.
module delay #(
    parameter int WIDTH  = 8,
    parameter int CYCLES = 1
) (
    input  logic             clk,
    input  logic [WIDTH-1:0] in,
    output logic [WIDTH-1:0] out
);
    if (CYCLES == 0) begin : gen_wire
        assign out = in;
        wire unused = clk;
    end else begin : gen_stages
        logic [WIDTH-1:0] stages[CYCLES];
        always_ff @(posedge clk) begin
            stages[0] <= in;
            for (int i = 1; i < CYCLES; i++) stages[i] <= stages[i-1];
        end
        assign out = stages[CYCLES-1];
    end
endmodule
