// The instruction set: 64-bit instructions {opcode[63:56], register[55:48], 16'b0, value[31:0]}.
// `isa.py` holds the same numbers for the code generator; a test compares the two.
package isa;

    typedef enum logic [7:0] {
        SET   = 0,  // register <= value; waits while the unit that reads the register is busy
        LOAD  = 1,  // start the unit; waits while it is busy
        CONV  = 2,
        STORE = 3,
        WAIT  = 4,  // until the units in the mask are idle: bit 0 LOAD, bit 1 CONV, bit 2 STORE
        STOP  = 5   // until all are, then raise `done`
    } opcode_t;

    // Addresses count words of 16 bytes: 16 channels of a pixel, or a row of a weight tile.
    // Registers with two fields hold {vertical[31:16], horizontal[15:0]}.
    typedef enum logic [4:0] {
        LOAD_FROM   = 0,   // address in memory
        LOAD_TO     = 1,   // {scratchpad[15:14]: 0 activations, 1 weights, 2 parameters; address}
        LOAD_RUN    = 2,   // words that lie side by side in memory
        LOAD_RUNS   = 3,   // how many such runs
        LOAD_STRIDE = 4,   // from the start of a run to that of the next
        LOAD_FLIP   = 5,   // 1: invert the top bit of every byte, uint8 to int8
        ACT         = 6,   // address of the first tap of the first pixel, inside the image or not
        WGT         = 7,   // address of the first weight tile
        ACC         = 8,   // address of the first accumulator; bit 10 is the bank
        IN_SIZE     = 9,   // height and width of the image in the scratchpad
        OUT_SIZE    = 10,  // of the result
        PIXELS      = 11,  // their product
        KERNEL      = 12,  // height and width
        BLOCKS      = 13,  // of 16 input channels
        ORIGIN      = 14,  // coordinates of the first tap of the first pixel, signed
        STRIDES     = 15,
        DILATION    = 16,
        STRIDE_STEP = 17,  // vertical stride times the image's width
        TAP_STEP    = 18,  // vertical dilation times the image's width
        PLANE       = 19,  // words in a block of channels: height times width
        SCALE       = 20,  // every sum is multiplied by this signed number of 24 bits
        MODE        = 21,  // {value of padding[15:8], 7'b0, accumulate[0]}
        STORE_FROM  = 22,  // address of the first accumulator
        STORE_TO    = 23,  // address in memory
        STORE_COUNT = 24,  // words
        STORE_PAR   = 25,  // address of bias, multiplier and shift of 16 channels
        STORE_FORM  = 26   // {flip[24], highest[23:16], lowest[15:8], zero point[7:0]}
    } register_t;

    localparam int REGISTERS = 27;
    localparam int LANES = 16;
    localparam int SUM_BITS = 20;  // holds 16 products of two bytes

    localparam int ACT_BITS = 13;  // 8192 words: 128 KiB
    localparam int WGT_BITS = 13;  // 8192 words: 128 KiB
    localparam int PAR_BITS = 10;  // 1024 words: 16 KiB
    localparam int ACC_BITS = 10;  // 1024 words of 16 x 32 bits in each of two banks: 128 KiB

    typedef logic [LANES*8-1:0] word_t;
    typedef logic [LANES*32-1:0] acc_t;

endpackage
