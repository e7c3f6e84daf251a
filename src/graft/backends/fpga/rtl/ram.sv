// Block RAM with one write port and one read port; what is read appears a cycle later.
module ram #(
    parameter int WIDTH = 128,
    parameter int BITS  = 10
) (
    input  logic             clk,
    input  logic             write,
    input  logic [BITS-1:0]  write_address,
    input  logic [WIDTH-1:0] write_data,
    input  logic             read,
    input  logic [BITS-1:0]  read_address,
    output logic [WIDTH-1:0] read_data
);
    logic [WIDTH-1:0] words[1<<BITS];

    always_ff @(posedge clk) begin
        if (write) words[write_address] <= write_data;
        if (read) read_data <= words[read_address];
    end
endmodule
