/* Answers for `cpuid` in libraries whose cpuid instructions `limited.py` has replaced: this
   processor's own, without what came after AVX2 (AVX-512, VNNI in all its forms, AMX, AVX10, and
   the vector forms of AES and Galois fields).

   0x27 was `daa` on 32-bit processors. It is illegal in 64-bit mode and no compiler makes it, so
   that nothing but a replaced instruction is answered for. */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

/* Leaf 7: EBX f dq ifma pf er cd bw vl; ECX vbmi vbmi2 gfni vaes vpclmulqdq vnni bitalg vpopcntdq;
   EDX 4vnniw 4fmaps vp2intersect amx-bf16 fp16 amx-tile amx-int8. */
enum { LEAF = 7, AVX10 = 0x24 };
static const unsigned hidden_b = 0xdc230000u, hidden_c = 0x00005f42u, hidden_d = 0x03c0010cu;

static void answer(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)registers[REG_RIP];
  if (code[0] != 0x27 || code[1] != 0x27) {
    signal(SIGILL, SIG_DFL); /* somebody else's: it is raised again */
    return;
  }
  unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
  unsigned a, b, c, d;
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == LEAF && part == 0) {
    a = 0; /* further parts, which have nothing but extensions after AVX2 */
    b &= ~hidden_b, c &= ~hidden_c, d &= ~hidden_d;
  } else if (leaf == LEAF || leaf == AVX10) {
    a = b = c = d = 0;
  }
  registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

__attribute__((constructor)) static void install(void) {
  struct sigaction action = {0};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGILL, &action, 0);
}
