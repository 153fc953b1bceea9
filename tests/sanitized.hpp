#pragma once
// Whether this build runs under a sanitizer: times mean nothing then, and what is measured runs once, small, without
// gates.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
