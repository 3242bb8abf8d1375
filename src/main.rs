//! The `spattn` program; everything is in the library.

fn main() -> std::process::ExitCode {
    spattn::cli::main()
}
