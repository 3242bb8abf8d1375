//! [`Kernel`]: a loaded kernel; [`Launch`]: a launch of it with its arguments.

use std::ffi::c_void;
use std::marker::PhantomData;

use cudarc::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig, cuLaunchKernelEx,
};
use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, DriverError, LaunchConfig};

/// A loaded kernel.
#[derive(Debug, Clone)]
pub(super) struct Kernel {
    pub(super) function: CudaFunction,
    /// Whether it may start before the kernel ahead of it has ended: its file includes `early.cuh`, so it waits by itself, and its code is
    /// for an architecture that supports this.
    pub(super) starts_early: bool,
}

/// A launch; its arguments are added one by one in the kernel's order.
pub(super) struct Launch<'a> {
    stream: &'a CudaStream,
    kernel: &'a Kernel,
    starts_early: bool,
    arguments: Vec<*mut c_void>,
    /// Arguments are borrowed until the launch.
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Launch<'a> {
    pub(super) fn new(stream: &'a CudaStream, kernel: &'a Kernel) -> Self {
        Self { stream, kernel, starts_early: kernel.starts_early, arguments: Vec::new(), borrowed: PhantomData }
    }

    /// If `waits`, begins only when all earlier work has ended: no documentation allows an early start after a wait for another stream.
    pub(super) fn in_order(self, waits: bool) -> Self {
        Self { starts_early: self.starts_early && !waits, ..self }
    }

    /// Adds an argument.
    pub(super) fn arg<T: DeviceRepr>(&mut self, argument: &'a T) -> &mut Self {
        self.arguments.push(std::ptr::from_ref(argument).cast_mut().cast());
        self
    }

    /// Enqueues the launch after all earlier work. A recording keeps whether the kernel starts early, as an edge of the graph that the
    /// kernel itself completes.
    ///
    /// # Safety
    /// The arguments must be those that the kernel declares. With them, it must only access memory that lives until it has ended.
    pub(super) unsafe fn launch(&mut self, grid: LaunchConfig) -> Result<(), DriverError> {
        self.stream.context().bind_to_thread()?;
        let mut early = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = CUlaunchConfig {
            gridDimX: grid.grid_dim.0,
            gridDimY: grid.grid_dim.1,
            gridDimZ: grid.grid_dim.2,
            blockDimX: grid.block_dim.0,
            blockDimY: grid.block_dim.1,
            blockDimZ: grid.block_dim.2,
            sharedMemBytes: grid.shared_mem_bytes,
            hStream: self.stream.cu_stream(),
            attrs: &raw mut early,
            numAttrs: u32::from(self.starts_early),
        };
        let arguments = self.arguments.as_mut_ptr();
        // SAFETY: the configuration, the attribute and the arguments live until the call returns, which copies them. The caller is
        // responsible for what the kernel does with them.
        unsafe {
            cuLaunchKernelEx(&raw const config, self.kernel.function.cu_function(), arguments, std::ptr::null_mut())
        }
        .result()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    const HEADER: &str = "#include \"early.cuh\"";
    const WAIT: &str = "wait_for_earlier();";
    /// By file, functions that read only what no kernel writes before they wait. Their kernels do nothing but call them.
    const READ_AHEAD: [(&str, &str); 4] = [
        ("attend_tiles", "attend_block"),
        ("gemv_hopper", "gemv"),
        ("quantised", "gemv_one"),
        ("quantised_mma", "gemv"),
    ];
    /// Arguments that kernels write.
    const WRITTEN: [&str; 5] = ["x", "out", "prefix", "queries", "to"];

    fn files(ending: &str) -> Vec<(PathBuf, String)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|own| own == ending)).map(with_code).collect()
    }

    /// Returns a file's path and its code, without comments and the backslashes of macros.
    fn with_code(path: PathBuf) -> (PathBuf, String) {
        let text = fs::read_to_string(&path).unwrap();
        let line = |line: &str| line.split("//").next().unwrap_or("").trim_end().trim_end_matches('\\').to_owned();
        let code = text.lines().map(line).collect::<Vec<_>>().join("\n");
        (path, code)
    }

    /// Returns the text between the first brace and the one that closes it.
    fn body(text: &str) -> &str {
        let begin = text.find('{').expect("a function has a body") + 1;
        let mut depth = 1;
        let end = text[begin..].find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        text[begin..][..end.expect("a body ends")].trim()
    }

    /// Returns why a kernel does not wait as it must, or `None` if it does.
    fn fault(file: &str, code: &str, kernel: &str) -> Option<&'static str> {
        let own = body(kernel);
        if own.starts_with("begin_short();") || own.starts_with(WAIT) {
            return None;
        }
        let called = |(of, name): &&(&str, &str)| {
            *of == file && own.trim_start_matches("by_mma::").starts_with(&format!("{name}<"))
        };
        let Some((_, name)) = READ_AHEAD.iter().find(called) else { return Some("does not begin with waiting") };
        if own.matches(';').count() != 1 {
            return Some("does more than call a function that waits");
        }
        let function = body(&code[code.find(&format!("void {name}("))?..]);
        let Some(at) = function.find(WAIT) else { return Some("calls what does not wait") };
        // The `x` of `threadIdx.x` is not the argument `x`.
        let before = function[..at].replace(".x", "");
        let depth = before.matches('{').count() - before.matches('}').count();
        let words: Vec<&str> = before.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        match depth > 0 || before.contains("return;") {
            true => Some("may not wait"),
            false => WRITTEN.iter().any(|name| words.contains(name)).then_some("uses activations before it waits"),
        }
    }

    fn faults(file: &str, code: &str) -> Vec<&'static str> {
        let kernels: Vec<&str> = code.split("__global__").skip(1).collect();
        assert!(!kernels.is_empty(), "{file} has no kernel");
        kernels.iter().filter_map(|kernel| fault(file, code, kernel)).collect()
    }

    #[test]
    fn every_kernel_that_may_start_early_waits() {
        let mut early = Vec::new();
        for (path, code) in files("cu").into_iter().filter(|(_, code)| code.lines().any(|line| line == HEADER)) {
            let file = path.file_stem().unwrap().to_str().unwrap();
            assert_eq!(faults(file, &code), [""; 0], "{file}.cu");
            early.push(file.to_owned());
        }
        let all_of = ["attend", "attend_tiles", "gemv", "gemv_hopper", "quantised", "quantised_mma", "rope", "rows"];
        early.sort();
        assert_eq!(early, all_of, "the build reads the same line");
        for (path, code) in files("cuh") {
            assert!(!code.contains(HEADER), "{}: files that include it would start early unseen", path.display());
        }
    }

    #[test]
    fn kernels_that_do_not_wait_are_found() {
        let ahead = |before: &str| {
            format!(
                "void gemv(const T* w) {{ {before} {WAIT} x[0]; }} extern __global__ void k(int i) {{ gemv<1>(w); }}"
            )
        };
        assert_eq!(faults("gemv_hopper", &ahead("w[0];")), [""; 0]);
        assert_eq!(faults("gemv_hopper", &ahead("x[0];")), ["uses activations before it waits"]);
        assert_eq!(faults("gemv_hopper", &ahead("if (i) return;")), ["may not wait"]);
        assert_eq!(faults("gemv_hopper", &ahead("if (i) {").replace("x[0];", "x[0]; }")), ["may not wait"]);
        assert_eq!(faults("rows", &ahead("w[0];")), ["does not begin with waiting"]);
        assert_eq!(
            faults("rope", "__global__ void k() { rope(x); wait_for_earlier(); }"),
            ["does not begin with waiting"]
        );
    }
}
