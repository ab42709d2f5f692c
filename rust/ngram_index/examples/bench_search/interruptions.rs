//! Whether the system gave the processor to another thread in the middle of a measurement.

/// How often this thread was made to wait for others so far; always 0 where the system does not say.
#[cfg(target_os = "linux")]
pub fn interruptions() -> i64 {
    // SAFETY: all-zero bytes are a valid `rusage`, a struct of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is a `rusage` that the call may write to.
    match unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } {
        0 => usage.ru_nivcsw,
        _ => 0,
    }
}

#[cfg(not(target_os = "linux"))]
pub fn interruptions() -> i64 {
    0
}
