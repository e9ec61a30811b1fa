// XpulpV2 for Spike: an extension library, `--extlib=... --isa=..._xxpulp`.
//
// Encodings: src/qfold/dialects/riscv_pulp/encoding.py. Semantics: docs/dialects/riscv_pulp.md, which is RI5CY's; what RI5CY
// leaves undefined, or its hardware loops do not allow, is an illegal instruction here.
//
// With QFOLD_SPIKE_PROFILE=FILE in the environment, every jump's target, every load and every packed dot product that is executed
// are counted (profile.h).
//
// Spike was compiled with libstdc++ and its old std::string (-D_GLIBCXX_USE_CXX11_ABI=0). With libc++, which is all that zig brings,
// this compiles too: spike_abi.h bridges what differs, and the library is linked without a C++ library of its own.
#include <riscv/extension.h>
#include <riscv/mmu.h>
#include <riscv/processor.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "profile.h"
#include "spike_abi.h"

#define INSTRUCTION(name) reg_t fast_rv32i_##name(processor_t*, insn_t, reg_t)
INSTRUCTION(jal);
INSTRUCTION(jalr);
INSTRUCTION(c_jal);
INSTRUCTION(c_j);
INSTRUCTION(c_jr);
INSTRUCTION(c_jalr);
INSTRUCTION(c_ebreak);
INSTRUCTION(lb);
INSTRUCTION(lh);
INSTRUCTION(lw);
INSTRUCTION(lbu);
INSTRUCTION(lhu);
INSTRUCTION(flw);
INSTRUCTION(c_lw);
INSTRUCTION(c_lwsp);
INSTRUCTION(c_flw);
INSTRUCTION(c_flwsp);

namespace {

// ---- harts ---------------------------------------------------------------------------------------------------

// Hardware loops that are running: how many, and the level and the last instruction of the innermost.
struct loops_t {
  unsigned depth = 0;
  uint32_t level = 0;
  reg_t last = 0;
};

struct hart_t {
  loops_t loops;
  // Of a trap in a body: whether its instruction is known, and which it is.
  bool trapped = false;
  reg_t trapped_at = 0;
};

std::array<hart_t, MAX_HARTS> harts;
profiles_t<MAX_HARTS> profiles;

hart_t& hart_of(processor_t* p) { return harts[hart_id_of(p)]; }

void count_load(processor_t* p, reg_t pc, load_kind kind) {
  if (profiling) profiles[hart_id_of(p)].loads.count(pc, kind);
}

template <insn_func_t F>
reg_t counted_jump(processor_t* p, insn_t insn, reg_t pc) {
  const reg_t target = F(p, insn, pc);
  profiles[hart_id_of(p)].jumps.count(target);
  return target;
}

template <insn_func_t F, load_kind K>
reg_t counted_load(processor_t* p, insn_t insn, reg_t pc) {
  const reg_t next = F(p, insn, pc);
  profiles[hart_id_of(p)].loads.count(pc, K);
  return next;
}

// ---- registers -----------------------------------------------------------------------------------------------

uint32_t read(processor_t* p, size_t reg) { return uint32_t(registers_of(p)->XPR[reg]); }
void write(processor_t* p, size_t reg, uint32_t value) { registers_of(p)->XPR.write(reg, sreg_t(int32_t(value))); }
reg_t after(reg_t pc) { return sreg_t(int32_t(uint32_t(pc) + 4)); }

[[noreturn]] void refuse(insn_t insn) { throw trap_illegal_instruction(insn.bits()); }

// ---- loads and stores -------------------------------------------------------------------------------------------

template <class T>
uint32_t load(processor_t* p, uint32_t address) {
  return uint32_t(std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>(mmu_of(p)->load<T>(address)));
}

template <class T>
reg_t load_post(processor_t* p, insn_t insn, reg_t pc, uint32_t step, load_kind kind) {
  // The core would write one register twice.
  if (insn.rd() == insn.rs1()) refuse(insn);
  const uint32_t address = read(p, insn.rs1());
  const uint32_t value = load<T>(p, address);
  write(p, insn.rs1(), address + step);
  write(p, insn.rd(), value);
  count_load(p, pc, kind);
  return after(pc);
}

template <class T, load_kind K>
reg_t load_post_imm(processor_t* p, insn_t insn, reg_t pc) {
  return load_post<T>(p, insn, pc, uint32_t(insn.i_imm()), K);
}

template <class T, load_kind K>
reg_t load_post_reg(processor_t* p, insn_t insn, reg_t pc) {
  return load_post<T>(p, insn, pc, read(p, insn.rs2()), K);
}

template <class T>
reg_t store_post(processor_t* p, insn_t insn, reg_t pc, uint32_t step) {
  const uint32_t address = read(p, insn.rs1());
  mmu_of(p)->store<T>(address, T(read(p, insn.rs2())));
  write(p, insn.rs1(), address + step);
  return after(pc);
}

template <class T>
reg_t store_post_imm(processor_t* p, insn_t insn, reg_t pc) {
  return store_post<T>(p, insn, pc, uint32_t(insn.s_imm()));
}

// The register with the increment is where other formats have rd.
template <class T>
reg_t store_post_reg(processor_t* p, insn_t insn, reg_t pc) {
  return store_post<T>(p, insn, pc, read(p, insn.rd()));
}

// There is no event unit here that could let it wait: a load.
reg_t elw(processor_t* p, insn_t insn, reg_t pc) {
  write(p, insn.rd(), load<int32_t>(p, read(p, insn.rs1()) + uint32_t(insn.i_imm())));
  count_load(p, pc, P_ELW);
  return after(pc);
}

// ---- arithmetic ------------------------------------------------------------------------------------------------

// rd = F(rd, rs1, rs2)
template <uint32_t (*F)(uint32_t, uint32_t, uint32_t)>
reg_t arithmetic(processor_t* p, insn_t insn, reg_t pc) {
  write(p, insn.rd(), F(read(p, insn.rd()), read(p, insn.rs1()), read(p, insn.rs2())));
  return after(pc);
}

uint32_t mac(uint32_t d, uint32_t a, uint32_t b) { return d + a * b; }
uint32_t msu(uint32_t d, uint32_t a, uint32_t b) { return d - a * b; }
// rd = (rs1 + rs2) >> the field at bits 25 to 29
reg_t addn(processor_t* p, insn_t insn, reg_t pc) {
  const uint32_t shift = (insn.bits() >> 25) & 31, sum = read(p, insn.rs1()) + read(p, insn.rs2());
  write(p, insn.rd(), uint32_t(int32_t(sum) >> shift));
  return after(pc);
}

uint32_t min(uint32_t, uint32_t a, uint32_t b) { return std::min(int32_t(a), int32_t(b)); }
uint32_t minu(uint32_t, uint32_t a, uint32_t b) { return std::min(a, b); }
uint32_t max(uint32_t, uint32_t a, uint32_t b) { return std::max(int32_t(a), int32_t(b)); }
uint32_t maxu(uint32_t, uint32_t a, uint32_t b) { return std::max(a, b); }
uint32_t abs(uint32_t, uint32_t a, uint32_t) { return int32_t(a) < 0 ? -a : a; }

// The sum of the products of the elements, each L of rs1 and R of rs2; with Scalar, all with the lowest one of rs2.
template <class L, class R, bool Scalar, bool Accumulate>
uint32_t dot(uint32_t d, uint32_t a, uint32_t b) {
  uint32_t sum = Accumulate ? d : 0;
  for (unsigned shift = 0; shift < 32; shift += 8 * sizeof(L))
    sum += uint32_t(int32_t(L(a >> shift))) * uint32_t(int32_t(R(Scalar ? b : b >> shift)));
  return sum;
}

template <class L, class R, bool Scalar, bool Accumulate>
reg_t dot_product(processor_t* p, insn_t insn, reg_t pc) {
  const reg_t next = arithmetic<dot<L, R, Scalar, Accumulate>>(p, insn, pc);
  if (profiling) profiles[hart_id_of(p)].dots.count(pc, dot_kind(insn.bits() >> 25 & 0x7f, insn.bits() >> 12 & 7));
  return next;
}

// ---- clipping and bit fields: immediates in the fields of the registers --------------------------------------------

// rd = F(rd, rs1, the field at bits 25 to 29, the field of rs2)
template <uint32_t (*F)(uint32_t, uint32_t, uint32_t, uint32_t)>
reg_t immediate(processor_t* p, insn_t insn, reg_t pc) {
  const uint32_t length = (insn.bits() >> 25) & 31, position = insn.rs2();
  write(p, insn.rd(), F(read(p, insn.rd()), read(p, insn.rs1()), length, position));
  return after(pc);
}

// A field of length + 1 bits that reaches beyond bit 31 means different things in different manuals.
template <uint32_t (*F)(uint32_t, uint32_t, uint32_t, uint32_t)>
reg_t bit_field(processor_t* p, insn_t insn, reg_t pc) {
  const uint32_t length = (insn.bits() >> 25) & 31, position = insn.rs2();
  if (length + position > 31) refuse(insn);
  return immediate<F>(p, insn, pc);
}

int32_t clip_limit(uint32_t i) { return int32_t((uint32_t(1) << (i == 0 ? 0 : i - 1)) - 1); }
uint32_t clip(uint32_t, uint32_t a, uint32_t, uint32_t i) {
  return std::clamp(int32_t(a), -clip_limit(i) - 1, clip_limit(i));
}
uint32_t clipu(uint32_t, uint32_t a, uint32_t, uint32_t i) { return std::clamp(int32_t(a), 0, clip_limit(i)); }

uint32_t ones(uint32_t length) { return ~uint32_t(0) >> (31 - length); }
uint32_t extractu(uint32_t, uint32_t a, uint32_t l, uint32_t p) { return (a >> p) & ones(l); }
uint32_t extract(uint32_t, uint32_t a, uint32_t l, uint32_t p) { return int32_t(a << (31 - l - p)) >> (31 - l); }
uint32_t bset(uint32_t, uint32_t a, uint32_t l, uint32_t p) { return a | ones(l) << p; }
uint32_t bclr(uint32_t, uint32_t a, uint32_t l, uint32_t p) { return a & ~(ones(l) << p); }
uint32_t insert(uint32_t d, uint32_t a, uint32_t l, uint32_t p) {
  return (d & ~(ones(l) << p)) | (a & ones(l)) << p;
}

// ---- hardware loops --------------------------------------------------------------------------------------------

// What may not be in a body: jumps, branches, CSR accesses and other system instructions, fences, p.elw, short instructions.
bool is_forbidden(uint32_t bits) {
  const uint32_t opcode = bits & 0x7f;
  return opcode == 0x63 || opcode == 0x67 || opcode == 0x6f || opcode == 0x73 || opcode == 0x0f ||
         (bits & 0x707f) == 0x6003 || (bits & 3) != 3;
}

// What processor_t::take_trap does in machine mode, which is private: the pc that it is called with is the setup's.
reg_t take_trap(processor_t* p, trap_t& trap, reg_t at) {
  state_t* state = csrs_of(p);
  state->mepc->write(at);
  state->mcause->write(trap.cause());
  state->mtval->write(trap.get_tval());
  reg_t status = state->mstatus->read();
  status = set_field(status, MSTATUS_MPIE, get_field(status, MSTATUS_MIE));
  status = set_field(status, MSTATUS_MPP, PRV_M);
  state->mstatus->write(set_field(status, MSTATUS_MIE, 0));
  return state->mtvec->read() & ~reg_t(3);
}

// Runs the body `count` times, from pc + 4 up to and including the instruction at `last`. Spike has no hook between
// instructions, so the loop runs here, and its instructions are counted here. A count of 0 does not skip the body.
reg_t run_loop(processor_t* p, insn_t insn, reg_t pc, uint32_t count, reg_t last) {
  hart_t& hart = hart_of(p);
  const uint32_t level = insn.rd();
  const reg_t start = after(pc);
  // At least three instructions; an inner loop has level 0 in one of level 1, and two instructions of it follow.
  if (level > 1 || last < start + 8 || (last - start) % 4 != 0) refuse(insn);
  if (hart.loops.depth > 0 && (level != 0 || hart.loops.level != 1 || last + 8 > hart.loops.last)) refuse(insn);

  const loops_t outer = hart.loops;
  hart.loops = {outer.depth + 1, level, last};
  mmu_t* mmu = mmu_of(p);
  reg_t at = start;
  uint64_t retired = 0;
  const auto leave = [&] {
    hart.loops = outer;
    csrs_of(p)->minstret->bump(retired);
    csrs_of(p)->mcycle->bump(retired);
  };
  try {
    for (bool first = true; first || count-- > 1; first = false) {
      for (reg_t next = start;;) {
        at = next;
        insn_fetch_t fetch = mmu->access_icache(at)->data;
        if (first && is_forbidden(uint32_t(fetch.insn.bits()))) refuse(fetch.insn);
        next = fetch.func(p, fetch.insn, at);
        retired++;
        if (at == last) break;
      }
    }
  } catch (trap_t& trap) {
    if (!hart.trapped) {
      hart.trapped = true;
      hart.trapped_at = at;
    }
    leave();
    if (outer.depth > 0) throw;
    hart.trapped = false;
    return take_trap(p, trap, hart.trapped_at);
  }
  leave();
  return after(last);
}

// The end is counted in half words from here, in the 12-bit immediate; the count is in a register.
reg_t lp_setup(processor_t* p, insn_t insn, reg_t pc) {
  const uint32_t bits = uint32_t(insn.bits());
  return run_loop(p, insn, pc, read(p, insn.rs1()), pc + 2 * (bits >> 20));
}

// The count is the 12-bit immediate; the end is in the field of rs1.
reg_t lp_setupi(processor_t* p, insn_t insn, reg_t pc) {
  const uint32_t bits = uint32_t(insn.bits());
  return run_loop(p, insn, pc, bits >> 20, pc + 2 * insn.rs1());
}

// ---- tables -----------------------------------------------------------------------------------------------------

constexpr insn_bits_t I_MASK = 0x0000707f, R_MASK = 0xfe00707f, FIELD_MASK = 0xc000707f, C_MASK = 0xe003, CR_MASK = 0xf07f;

constexpr insn_bits_t I(insn_bits_t opcode, insn_bits_t funct3) { return opcode | funct3 << 12; }
constexpr insn_bits_t R(insn_bits_t opcode, insn_bits_t funct3, insn_bits_t funct7) {
  return I(opcode, funct3) | funct7 << 25;
}

insn_desc_t describe(insn_bits_t match, insn_bits_t mask, insn_func_t f) { return {match, mask, f, f, f, f, f, f, f, f}; }

template <class L, class R, bool Accumulate>
void add_dot_products(std::vector<insn_desc_t>& list, insn_bits_t funct7) {
  const insn_bits_t f3 = sizeof(L) == 1 ? 1 : 0;
  list.push_back(describe(::R(0x57, f3, funct7), R_MASK, dot_product<L, R, false, Accumulate>));
  list.push_back(describe(::R(0x57, f3 + 4, funct7), R_MASK, dot_product<L, R, true, Accumulate>));
}

std::vector<insn_desc_t> xpulp_instructions() {
  std::vector<insn_desc_t> list = {
      describe(I(0x0b, 0), I_MASK, load_post_imm<int8_t, P_LB>),
      describe(I(0x0b, 1), I_MASK, load_post_imm<int16_t, P_LH>),
      describe(I(0x0b, 2), I_MASK, load_post_imm<int32_t, P_LW>),
      describe(I(0x0b, 4), I_MASK, load_post_imm<uint8_t, P_LBU>),
      describe(I(0x0b, 5), I_MASK, load_post_imm<uint16_t, P_LHU>),
      describe(R(0x0b, 7, 0x00), R_MASK, load_post_reg<int8_t, P_LB>),
      describe(R(0x0b, 7, 0x08), R_MASK, load_post_reg<int16_t, P_LH>),
      describe(R(0x0b, 7, 0x10), R_MASK, load_post_reg<int32_t, P_LW>),
      describe(R(0x0b, 7, 0x20), R_MASK, load_post_reg<uint8_t, P_LBU>),
      describe(R(0x0b, 7, 0x28), R_MASK, load_post_reg<uint16_t, P_LHU>),
      describe(I(0x2b, 0), I_MASK, store_post_imm<uint8_t>),
      describe(I(0x2b, 1), I_MASK, store_post_imm<uint16_t>),
      describe(I(0x2b, 2), I_MASK, store_post_imm<uint32_t>),
      describe(R(0x2b, 4, 0), R_MASK, store_post_reg<uint8_t>),
      describe(R(0x2b, 5, 0), R_MASK, store_post_reg<uint16_t>),
      describe(R(0x2b, 6, 0), R_MASK, store_post_reg<uint32_t>),
      describe(I(0x03, 6), I_MASK, elw),
      describe(R(0x33, 0, 0x02), R_MASK | 0x1f << 20, arithmetic<abs>),
      describe(R(0x33, 4, 0x02), R_MASK, arithmetic<min>),
      describe(R(0x33, 5, 0x02), R_MASK, arithmetic<minu>),
      describe(R(0x33, 6, 0x02), R_MASK, arithmetic<max>),
      describe(R(0x33, 7, 0x02), R_MASK, arithmetic<maxu>),
      describe(R(0x33, 1, 0x0a), R_MASK, immediate<clip>),
      describe(R(0x33, 2, 0x0a), R_MASK, immediate<clipu>),
      describe(R(0x5b, 2, 0x00), FIELD_MASK, addn),
      describe(R(0x33, 0, 0x21), R_MASK, arithmetic<mac>),
      describe(R(0x33, 1, 0x21), R_MASK, arithmetic<msu>),
      describe(R(0x33, 0, 0x60), FIELD_MASK, bit_field<extract>),
      describe(R(0x33, 1, 0x60), FIELD_MASK, bit_field<extractu>),
      describe(R(0x33, 2, 0x60), FIELD_MASK, bit_field<insert>),
      describe(R(0x33, 3, 0x60), FIELD_MASK, bit_field<bclr>),
      describe(R(0x33, 4, 0x60), FIELD_MASK, bit_field<bset>),
      describe(I(0x7b, 4), I_MASK, lp_setup),
      describe(I(0x7b, 5), I_MASK, lp_setupi),
  };
  add_dot_products<uint8_t, uint8_t, false>(list, 0x40);
  add_dot_products<uint16_t, uint16_t, false>(list, 0x40);
  add_dot_products<uint8_t, int8_t, false>(list, 0x44);
  add_dot_products<uint16_t, int16_t, false>(list, 0x44);
  add_dot_products<int8_t, int8_t, false>(list, 0x4c);
  add_dot_products<int16_t, int16_t, false>(list, 0x4c);
  add_dot_products<uint8_t, uint8_t, true>(list, 0x50);
  add_dot_products<uint16_t, uint16_t, true>(list, 0x50);
  add_dot_products<uint8_t, int8_t, true>(list, 0x54);
  add_dot_products<uint16_t, int16_t, true>(list, 0x54);
  add_dot_products<int8_t, int8_t, true>(list, 0x5c);
  add_dot_products<int16_t, int16_t, true>(list, 0x5c);
  return list;
}

// Spike's own jumps and loads, counted. Instructions of an extension are found before Spike's.
void add_profiled_instructions(std::vector<insn_desc_t>& list, bool has_f) {
  list.insert(list.end(), {
      describe(0x6f, 0x7f, counted_jump<fast_rv32i_jal>),
      describe(I(0x67, 0), I_MASK, counted_jump<fast_rv32i_jalr>),
      describe(0x2001, C_MASK, counted_jump<fast_rv32i_c_jal>),
      describe(0xa001, C_MASK, counted_jump<fast_rv32i_c_j>),
      describe(0x9002, 0xffff, fast_rv32i_c_ebreak),
      describe(0x8002, CR_MASK, counted_jump<fast_rv32i_c_jr>),
      describe(0x9002, CR_MASK, counted_jump<fast_rv32i_c_jalr>),
      describe(I(0x03, 0), I_MASK, counted_load<fast_rv32i_lb, LB>),
      describe(I(0x03, 1), I_MASK, counted_load<fast_rv32i_lh, LH>),
      describe(I(0x03, 2), I_MASK, counted_load<fast_rv32i_lw, LW>),
      describe(I(0x03, 4), I_MASK, counted_load<fast_rv32i_lbu, LBU>),
      describe(I(0x03, 5), I_MASK, counted_load<fast_rv32i_lhu, LHU>),
      describe(0x4000, C_MASK, counted_load<fast_rv32i_c_lw, LW>),
      describe(0x4002, C_MASK, counted_load<fast_rv32i_c_lwsp, LW>),
  });
  if (has_f) {
    list.insert(list.end(), {
        describe(I(0x07, 2), I_MASK, counted_load<fast_rv32i_flw, FLW>),
        describe(0x6000, C_MASK, counted_load<fast_rv32i_c_flw, FLW>),
        describe(0x6002, C_MASK, counted_load<fast_rv32i_c_flwsp, FLW>),
    });
  }
}

class xpulp_t : public extension_t {
 public:
  const char* name() const override { return "xpulp"; }

  std::vector<insn_desc_t> get_instructions(const processor_t& proc) override {
    auto list = xpulp_instructions();
    if (profiling) add_profiled_instructions(list, csrs_of(&proc)->misa->read() & 1 << ('F' - 'A'));
    return list;
  }

  std::vector<disasm_insn_t*> get_disasms(const processor_t*) override { return {}; }

  // A software interrupt is always pending. Where it is enabled in mie but not in mstatus, wfi ends at once, and gives the
  // other harts their turn: a core that waits for another one polls once a turn.
  void reset(processor_t& p) override {
    check_layout(&p);
    csrs_of(&p)->mip->backdoor_write_with_mask(MIP_MSIP, MIP_MSIP);
    hart_of(&p) = {};
    if (profiling) profiles.add(hart_id_of(&p));
  }
};

}  // namespace

REGISTER_SPIKE_EXTENSION(xpulp, []() -> extension_t* { return new xpulp_t; })
