// What runs on the DSP beside a region's kernels: it obeys the commands that arrive at its standard
// input, and answers at its standard output. Its memory, the arena, lasts as long as it runs.
typedef unsigned int u32;

enum { WRITE, RUN, READ };
struct command {
  u32 kind, offset, size; // bytes of the arena, where some are written or read
};

extern char arena[];
extern void (*const steps[])(void);

// What LLVM calls where a kernel takes a root; zig has it by C's name.
float sqrtf(float);
float __hexagon_sqrtf(float x) { return sqrtf(x); }

static u32 system_call(u32 number, u32 first, u32 second, u32 third) {
  register u32 r0 __asm__("r0") = first;
  register u32 r1 __asm__("r1") = second;
  register u32 r2 __asm__("r2") = third;
  register u32 r6 __asm__("r6") = number;
  __asm__ volatile("trap0(#1)" : "+r"(r0) : "r"(r1), "r"(r2), "r"(r6) : "memory");
  return r0;
}

static void leave(u32 status) {
  system_call(93, status, 0, 0);
  __builtin_unreachable();
}

// Transfers all bytes, by the system call read (63) or write (64).
static void transfer(u32 call, u32 file, char *bytes, u32 size) {
  while (size) {
    u32 done = system_call(call, file, (u32)bytes, size);
    if (done == 0 || done > size)
      leave(done == 0 ? 0 : 1); // the host has gone, or an error
    bytes += done;
    size -= done;
  }
}

// QEMU counts the packets that it has executed in a register that real processors do not have:
// r0 = c20, which assemblers refuse by that name.
static u32 packets(void) {
  register u32 count __asm__("r0");
  __asm__ volatile(".word 0x6a14c000" : "=r"(count) : : "memory");
  return count;
}

void _start(void) {
  for (;;) {
    struct command command;
    transfer(63, 0, (char *)&command, sizeof command);
    if (command.kind == RUN) {
      for (u32 step = 0; steps[step]; step++) {
        u32 before = packets();
        steps[step]();
        u32 count = packets() - before;
        transfer(64, 1, (char *)&count, sizeof count);
      }
    } else {
      int reads = command.kind == READ;
      transfer(reads ? 64 : 63, reads, arena + command.offset, command.size);
    }
  }
}
