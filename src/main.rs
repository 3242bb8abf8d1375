//! The `spattn` program; everything is in the library.

#[global_allocator]
static HEAP: spattn::kernels::heap::OrEnd = spattn::kernels::heap::OrEnd;

fn main() -> std::process::ExitCode {
    spattn::cli::main()
}
