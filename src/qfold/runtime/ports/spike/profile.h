// What a program executes: targets of jumps, loads and packed dot products by address, for xpulp.cc.
//
// With QFOLD_SPIKE_PROFILE=FILE in the environment they are written to FILE at exit, as lines
//   jump HART ADDRESS COUNT
//   load HART ADDRESS NAME COUNT        NAME: lb, lw, flw, p.lbu ... without the c. of the short forms
//   dot HART ADDRESS NAME COUNT         NAME: pv.sdotsp.b, pv.dotup.sc.h ...
#ifndef SPIKE_PROFILE_H
#define SPIKE_PROFILE_H

#include <riscv/decode.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

const char* const profile_path = std::getenv("QFOLD_SPIKE_PROFILE");
const bool profiling = profile_path != nullptr;

enum load_kind : uint8_t { LB, LH, LW, LBU, LHU, FLW, P_LB, P_LH, P_LW, P_LBU, P_LHU, P_ELW };
const char* const load_names[] = {"lb", "lh", "lw", "lbu", "lhu", "flw", "p.lb", "p.lh", "p.lw", "p.lbu", "p.lhu", "p.elw"};

// Packed dot products by two bits for the elements, as funct3 has them, and above them the lower bits of what funct7 tells.
const char* const dot_names[] = {"dotup", "dotusp", "", "dotsp", "sdotup", "sdotusp", "", "sdotsp"};
const char* const dot_forms[] = {"h", "b", "sc.h", "sc.b"};

constexpr uint8_t dot_kind(unsigned funct7, unsigned funct3) {
  return uint8_t((funct7 >> 2 & 7) << 2 | funct3 >> 1 | (funct3 & 1));
}

// Address -> how often, in pages of what an instruction cache would hold: programs lie densely.
class counters_t {
 public:
  void count(reg_t address, uint8_t kind = 0) {
    auto& page = pages[uint32_t(address) >> PAGE_BITS];
    if (!page) page = std::make_unique<page_t>();
    const size_t i = (address >> 1) % page->counts.size();
    page->counts[i]++;
    page->kinds[i] = kind;
  }

  template <class F>
  void for_each(F f) const {
    for (size_t p = 0; p < pages.size(); p++) {
      if (!pages[p]) continue;
      for (size_t i = 0; i < pages[p]->counts.size(); i++)
        if (pages[p]->counts[i]) f(uint32_t(p << PAGE_BITS | i << 1), pages[p]->kinds[i], pages[p]->counts[i]);
    }
  }

 private:
  static constexpr unsigned PAGE_BITS = 12;
  struct page_t {
    std::array<uint64_t, 1 << (PAGE_BITS - 1)> counts{};
    std::array<uint8_t, 1 << (PAGE_BITS - 1)> kinds{};
  };
  std::vector<std::unique_ptr<page_t>> pages{1u << (32 - PAGE_BITS)};
};

struct profile_t {
  counters_t jumps, loads, dots;
};

template <size_t N>
class profiles_t {
 public:
  profile_t& operator[](size_t hart) { return *profiles[hart]; }
  void add(size_t hart) { profiles[hart] = std::make_unique<profile_t>(); }

  ~profiles_t() {
    if (!profiling) return;
    FILE* file = std::fopen(profile_path, "w");
    if (file == nullptr) {
      std::perror(profile_path);
      return;
    }
    for (size_t h = 0; h < N; h++) {
      if (!profiles[h]) continue;
      profiles[h]->jumps.for_each([&](uint32_t address, uint8_t, uint64_t n) {
        std::fprintf(file, "jump %zu 0x%08x %llu\n", h, address, (unsigned long long)n);
      });
      profiles[h]->loads.for_each([&](uint32_t address, uint8_t kind, uint64_t n) {
        std::fprintf(file, "load %zu 0x%08x %s %llu\n", h, address, load_names[kind], (unsigned long long)n);
      });
      profiles[h]->dots.for_each([&](uint32_t address, uint8_t kind, uint64_t n) {
        const char *name = dot_names[kind >> 2], *form = dot_forms[kind & 3];
        std::fprintf(file, "dot %zu 0x%08x pv.%s.%s %llu\n", h, address, name, form, (unsigned long long)n);
      });
    }
    std::fclose(file);
  }

 private:
  std::array<std::unique_ptr<profile_t>, N> profiles;
};

#endif
