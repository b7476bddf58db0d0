// SPDX-License-Identifier: Apache-2.0
//! The C interface of normjit, by dlopen and without other crates: its structures, constants and functions as
//! normjit/c_api.h has them, and above them a thin layer that owns handles and texts.
//!
//! `normjit/c_api.h` is the manual: a member, constant or function has the meaning of its namesake there. What this
//! crate adds is ownership: [`Service`] and [`Kernel`] release themselves, errors are [`Error`], texts are `String`.
//! Launches are `unsafe`, since nothing knows what a device pointer points to.
//!
//! ```no_run
//! # fn main() -> Result<(), normjit_sys::Error> {
//! # let (x, y) = (std::ptr::null::<std::ffi::c_void>(), std::ptr::null_mut());
//! let library = normjit_sys::Library::open()?;
//! let service = library.service()?;
//! let spec = normjit_sys::Spec { columns: 4096, ..Default::default() };
//! let mut tensors = normjit_sys::Tensors { rows: 1000, ..Default::default() };
//! tensors.x.pointer = x; // device pointers
//! tensors.y.pointer = y;
//! unsafe { service.norm(&spec, &tensors, std::ptr::null_mut()) }
//! # }
//! ```
//!
//! The layouts are compared with the header by `tests/rust/rust_test.py`.

use std::ffi::{c_void, CStr, CString};
use std::fmt;
use std::os::raw::{c_char, c_int};
use std::ptr;

/// `normjit_status`: [`OK`] or what went wrong.
pub type Status = i32;
/// A `CUstream` or `cudaStream_t`; null is the default stream.
pub type Stream = *mut c_void;

/// What a structure and its members are called in C, and where they lie: for the test of the layouts.
#[doc(hidden)]
pub type Layout = Vec<(&'static str, usize, usize)>;

/// A structure that begins with `struct_size`, its size; `Default` is its `_INIT` macro.
macro_rules! structures {
    ($($(#[$about:meta])* $c_name:literal $name:ident { $($member:ident: $type:ty = $default:expr,)* })*) => {
        $(
            $(#[$about])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name {
                /// The size of this structure, as `Default` sets it.
                pub struct_size: usize,
                $(#[allow(missing_docs)] pub $member: $type,)*
            }
            impl Default for $name {
                fn default() -> Self {
                    Self { struct_size: std::mem::size_of::<Self>(), $($member: $default,)* }
                }
            }
        )*
        #[doc(hidden)]
        pub fn layouts() -> Vec<(&'static str, usize, Layout)> {
            vec![$({
                let value = $name::default();
                let at = |member: *const u8| member as usize - &value as *const $name as usize;
                ($c_name, std::mem::size_of::<$name>(), vec![
                    ("struct_size", at(ptr::addr_of!(value.struct_size).cast()), std::mem::size_of::<usize>()),
                    $((stringify!($member), at(ptr::addr_of!(value.$member).cast()), std::mem::size_of::<$type>()),)*
                ])
            },)*]
        }
    };
}

/// Constants of the header, without the `NORMJIT_` in front of their names.
macro_rules! constants {
    ($($(#[$about:meta])* { $($name:ident = $value:literal,)* })*) => {
        $($(#[allow(missing_docs)] pub const $name: i32 = $value;)*)*
        #[doc(hidden)]
        pub fn constants() -> Vec<(&'static str, i32)> {
            vec![$($((stringify!($name), $name),)*)*]
        }
    };
}

constants! {
    /// Statuses.
    {
        OK = 0, BAD_RANK = 100, BAD_DIMENSION = 101, TOO_MANY_COLUMNS = 102, BAD_DTYPE = 103, BAD_EPSILON = 104,
        BAD_AFFINE = 105, BAD_ACTIVATION = 106, BAD_SCALE = 107, BAD_SPEC_TEXT = 108, BAD_COMBINATION = 109,
        EMPTY_KERNEL = 200, NULL_POINTER = 201, UNEXPECTED_POINTER = 202, MISALIGNED = 203, BAD_ROWS = 204,
        BAD_STRIDE = 205, WORKSPACE_REQUIRED = 206, WRONG_DEVICE = 207, OUT_OF_BOUNDS = 208, OVERLAP = 209,
        BAD_PLANE = 210, UNKNOWN_ARCH = 300, ILLEGAL_PLAN = 301, BAD_TEMPLATE = 302, NO_COMPILER = 400,
        COMPILE_FAILED = 401, COMPILER_TOO_OLD = 402, NO_DRIVER = 500, DRIVER_TOO_OLD = 501, NO_DEVICE = 502,
        NO_CONTEXT = 503, LOAD_FAILED = 504, DRIVER_ERROR = 505, OUT_OF_MEMORY = 506, NOT_RESIDENT = 507,
        FORKED_AFTER_CUDA_INIT = 508, CACHE_IO = 600, UNTRUSTED = 601, BAD_ARGUMENT = 700, NOT_CACHED = 800,
        NOT_READY = 801,
    }
    /// Values of the members of [`Spec`].
    {
        LAYER = 1, RMS = 2,
        F16 = 1, BF16 = 2, F32 = 3, F64 = 4, E4M3 = 5, E5M2 = 6, S8 = 7, E2M1 = 8, E8M0 = 9,
        NO_GATE = 1, GATE_BEFORE = 2, GATE_AFTER = 3,
        NO_GATE_FUNCTION = 1, GATE_SILU = 2, GATE_SIGMOID = 3, GATE_TANH = 4,
        NO_MODULATION = 1, MOD_SCALE = 2, MOD_SCALE_SHIFT = 3,
        NO_RESIDUAL = 1, RESIDUAL_BEFORE = 2, RESIDUAL_AFTER = 3,
        NO_ROUNDING = 1, ROUND_SUM = 2, ROUND_NORM = 3, ROUND_SUM_NORM = 4, ROUND_Y = 5, ROUND_SUM_Y = 6,
        ROUND_NORM_Y = 7, ROUND_SUM_NORM_Y = 8,
        NO_QUANTIZATION = 1, QUANTIZE_BY_TENSOR = 2, QUANTIZE_BY_ROW = 3, QUANTIZE_BY_BLOCK_16 = 4,
        QUANTIZE_BY_BLOCK_32 = 5, QUANTIZE_BY_BLOCK_64 = 6, QUANTIZE_BY_BLOCK_128 = 7,
        SCALE_F32 = 1, SCALE_POWER_OF_TWO = 2, SCALE_E8M0 = 3, SCALE_E4M3 = 4,
        SCALE_LAYOUT_ROWS = 1, SCALE_LAYOUT_COLUMNS = 2, SCALE_LAYOUT_PACKED_COLUMNS = 3, SCALE_LAYOUT_SWIZZLED = 4,
        NO_ALSO = 1, ALSO_F16 = 2, ALSO_BF16 = 3, ALSO_F32 = 4,
        NO_AFFINE = 1, WEIGHT = 2, WEIGHT_BIAS = 3,
        NEED_ALL = 1, NEED_DX = 2, NEED_DX_DWEIGHT = 3, NEED_DX_DBIAS = 4, NEED_DWEIGHT_DBIAS = 5, NEED_DWEIGHT = 6,
        NEED_DBIAS = 7,
        NO_ACTIVATION = 1, RELU = 2, GELU = 3, GELU_TANH = 4, SILU = 5,
    }
    /// Values of [`Options`], of freezing, logs, switches and events.
    {
        EAGER = 1, LAZY = 2, CACHED_ONLY = 3,
        THAWED = 1, FROZEN_WARN = 2, FROZEN_ERROR = 3,
        LOG_DEBUG = 1, LOG_INFO = 2, LOG_WARN = 3, LOG_ERROR = 4,
        YES = 1, NO = 2,
        INSTANT = 1, BEGIN = 2, END = 3,
    }
    /// Operands.
    {
        OPERAND_X = 1, OPERAND_IN_BIAS = 2, OPERAND_GATE = 3, OPERAND_GATE_TABLE = 4, OPERAND_RESIDUAL = 5,
        OPERAND_WEIGHT = 6, OPERAND_BIAS = 7, OPERAND_MOD_SCALE = 8, OPERAND_MOD_SCALE_TABLE = 9,
        OPERAND_MOD_SHIFT = 10, OPERAND_MOD_SHIFT_TABLE = 11, OPERAND_TENSOR_SCALE = 12, OPERAND_UPPER_BOUND = 13,
        OPERAND_GLOBAL_SCALE = 14, OPERAND_Y = 15, OPERAND_SUM = 16, OPERAND_MEAN = 17, OPERAND_RSTD = 18,
        OPERAND_ALSO = 19, OPERAND_ROW_SCALE = 20, OPERAND_BLOCK_SCALE = 21, OPERAND_AMAX = 22, OPERAND_DY = 23,
        OPERAND_DSUM = 24, OPERAND_DX = 25, OPERAND_DWEIGHT = 26, OPERAND_DBIAS = 27, OPERAND_DGATE = 28,
        OPERAND_DMOD_SCALE = 29, OPERAND_DMOD_SHIFT = 30, OPERAND_SAVED_MEAN = 31, OPERAND_SAVED_RSTD = 32,
        OPERAND_WORKSPACE = 256,
    }
    /// How many elements an operand has.
    {
        EXTENT_MATRIX = 1, EXTENT_SHARED = 2, EXTENT_COLUMNS = 3, EXTENT_ROWS = 4, EXTENT_ONE = 5, EXTENT_BLOCKS = 6,
    }
}

/// `NORMJIT_ABI_VERSION`: that of the library must be the same.
pub const ABI_VERSION: u32 = 1;

/// `NORMJIT_WORKSPACE_ZEROED`: bytes at the beginning of a workspace.
pub const WORKSPACE_ZEROED: usize = 225 << 10;

/// `normjit_input_rows`: row r begins `(r / n) * outer + (r % n) * inner` elements behind the pointer; `outer` -1:
/// contiguous rows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct InputRows {
    pub pointer: *const c_void,
    pub n: i64,
    pub outer: i64,
    pub inner: i64,
}
/// `normjit_output_rows`: likewise, of what is written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct OutputRows {
    pub pointer: *mut c_void,
    pub n: i64,
    pub outer: i64,
    pub inner: i64,
}
impl Default for InputRows {
    fn default() -> Self {
        Self { pointer: ptr::null(), n: 1, outer: -1, inner: 0 }
    }
}
impl Default for OutputRows {
    fn default() -> Self {
        Self { pointer: ptr::null_mut(), n: 1, outer: -1, inner: 0 }
    }
}

/// `normjit_log_callback`. It must not unwind.
pub type LogCallback = unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char);
/// `normjit_event_callback`. It must not unwind.
pub type EventCallback = unsafe extern "C" fn(user: *mut c_void, event: *const Event);
/// `normjit_progress_callback`. It must not unwind.
pub type ProgressCallback =
    unsafe extern "C" fn(user: *mut c_void, spec: *const c_char, outcome: *const c_char, done: i32, total: i32);

structures! {
    /// What to compute.
    "normjit_spec" Spec {
        columns: i64 = 0, epsilon: f64 = 1e-5, scale: f64 = 1.0, norm: i32 = 0, input: i32 = 0, output: i32 = 0,
        weight: i32 = 0, residual: i32 = 0, sum: i32 = 0, affine: i32 = 0, activation: i32 = 0, statistics: i32 = 0,
        residual_type: i32 = 0, in_bias: i32 = 0, rounding: i32 = 0, weight_offset: i32 = 0, affine_rows: i32 = 0,
        modulation_type: i32 = 0, gate: i32 = 0, gate_function: i32 = 0, gate_table: i32 = 0, modulation: i32 = 0,
        plain_modulation: i32 = 0, modulation_table: i32 = 0, channels_first: i32 = 0, quantization: i32 = 0,
        inverse_scale: i32 = 0, upper_bound: i32 = 0, scale_format: i32 = 0, scale_layout: i32 = 0, also: i32 = 0,
        amax: i32 = 0, backward: i32 = 0, dsum: i32 = 0, gradient_type: i32 = 0, need: i32 = 0, reserved: i32 = 0,
    }
    /// What happened; see [`Options::on_event`].
    "normjit_event" Event {
        kind: *const c_char = ptr::null(), spec: *const c_char = ptr::null(), plan: *const c_char = ptr::null(),
        arch: *const c_char = ptr::null(), detail: *const c_char = ptr::null(), milliseconds: f64 = 0.0,
        phase: i32 = 0,
    }
    /// How a service works: what is 0 or null is as the environment says. Texts must live until the service is made,
    /// and what the callbacks use as long as the service and its kernels.
    "normjit_options" Options {
        ignore_environment: i32 = 0, mode: i32 = 0, shared_cache: i32 = 0, exact_toolchain: i32 = 0,
        batch_invariant: i32 = 0, remote_unsigned: i32 = 0, cache_directory: *const c_char = ptr::null(),
        layers: *const c_char = ptr::null(), max_cache_bytes: i64 = 0, miss_log: *const c_char = ptr::null(),
        compiler_path: *const c_char = ptr::null(), cuda_home: *const c_char = ptr::null(),
        template_directory: *const c_char = ptr::null(), log: Option<LogCallback> = None,
        log_user: *mut c_void = ptr::null_mut(), on_event: Option<EventCallback> = None,
        event_user: *mut c_void = ptr::null_mut(), remote: *const c_char = ptr::null(),
        remote_store: *const c_void = ptr::null(), trust: *const c_char = ptr::null(),
        sign_key: *const c_char = ptr::null(), remote_pack: *const c_char = ptr::null(),
    }
    /// The operands of a launch; those that the spec does not have are null.
    "normjit_tensors" Tensors {
        x: InputRows = InputRows::default(), y: OutputRows = OutputRows::default(),
        weight: InputRows = InputRows::default(), bias: InputRows = InputRows::default(),
        mean: *mut c_void = ptr::null_mut(), rstd: *mut c_void = ptr::null_mut(), rows: i64 = 0,
        workspace: *mut c_void = ptr::null_mut(), residual: InputRows = InputRows::default(),
        sum: OutputRows = OutputRows::default(), in_bias: *const c_void = ptr::null(),
        gate: InputRows = InputRows::default(), gate_table: *const c_void = ptr::null(),
        mod_scale: InputRows = InputRows::default(), mod_scale_table: *const c_void = ptr::null(),
        mod_shift: InputRows = InputRows::default(), mod_shift_table: *const c_void = ptr::null(), plane: i64 = 0,
        tensor_scale: *const c_void = ptr::null(), row_scale: *mut c_void = ptr::null_mut(),
        upper_bound: *const c_void = ptr::null(), global_scale: *const c_void = ptr::null(),
        also: OutputRows = OutputRows::default(), block_scale: *mut c_void = ptr::null_mut(),
        amax: *mut c_void = ptr::null_mut(), dy: InputRows = InputRows::default(),
        dsum: InputRows = InputRows::default(), dx: OutputRows = OutputRows::default(),
        dweight: *mut c_void = ptr::null_mut(), dbias: *mut c_void = ptr::null_mut(),
        dgate: OutputRows = OutputRows::default(), dmod_scale: OutputRows = OutputRows::default(),
        dmod_shift: OutputRows = OutputRows::default(), saved_mean: *const c_void = ptr::null(),
        saved_rstd: *const c_void = ptr::null(),
    }
    /// An operand that a spec has.
    "normjit_operand" OperandRow {
        name: *const c_char = ptr::null(), offset: usize = 0, operand: i32 = 0, output: i32 = 0, extent: i32 = 0,
        dtype: i32 = 0, in_place: i32 = 0, reserved: i32 = 0,
    }
    /// How to launch.
    "normjit_launch_options" LaunchOptions {
        overlap_previous: i32 = 0, miss_in_capture: i32 = 0, driver_result: *mut i32 = ptr::null_mut(),
    }
    /// The launches to prepare a kernel for.
    "normjit_prepare_options" PrepareOptions {
        device: i32 = -1, pointer_alignment: i32 = 0, rows_hint: i64 = 0, x_row_stride: i64 = -1,
        y_row_stride: i64 = -1, plan: *const c_char = ptr::null(), grouped_rows: i32 = 0, batch_invariant: i32 = 0,
        plane: i64 = 0,
    }
    /// The kernels of a prebuild or an export.
    "normjit_kernel_set" KernelSet {
        specs: *const *const c_char = ptr::null(), spec_count: usize = 0, archs: *const *const c_char = ptr::null(),
        arch_count: usize = 0,
    }
}

/// A label of metrics, for [`Functions::normjit_prometheus`].
#[repr(C)]
#[allow(missing_docs)]
pub struct Label {
    pub name: *const c_char,
    pub value: *const c_char,
}

/// The function pointers of the header under its names, each looked up when the library is opened.
macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// Every function of the header, to be called as C calls it.
        #[allow(missing_docs)]
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($argument: $type),*) $(-> $result)?,)* }
        impl Functions {
            /// The error is the name of a function that the library lacks.
            unsafe fn of(library: *mut c_void) -> Result<Self, &'static str> {
                Ok(Self { $($name: {
                    let address = dlsym(library, concat!(stringify!($name), "\0").as_ptr().cast());
                    if address.is_null() { return Err(stringify!($name)); }
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(address)
                },)* })
            }
        }
        #[doc(hidden)]
        pub fn function_names() -> Vec<&'static str> { vec![$(stringify!($name),)*] }
    };
}

type Text = *mut *mut c_char; // char **, to be freed

functions! {
    normjit_abi_version() -> u32;
    normjit_version() -> *const c_char;
    normjit_status_name(status: Status) -> *const c_char;
    normjit_status_message(status: Status) -> *const c_char;
    normjit_free(text: *mut c_char);
    normjit_columns_of(shape: *const i64, rank: usize, columns: *mut i64, error: Text) -> Status;
    normjit_spec_parse(text: *const c_char, spec: *mut Spec, error: Text) -> Status;
    normjit_spec_text(spec: *const Spec, text: Text, error: Text) -> Status;
    normjit_block_scale_shape(spec: *const Spec, rows: i64, shape: *mut i64, rank: *mut usize, error: Text) -> Status;
    normjit_operands(spec: *const Spec, operands: *mut OperandRow, count: *mut usize, error: Text) -> Status;
    normjit_service_create(options: *const Options, service: *mut *mut c_void, error: Text) -> Status;
    normjit_service_destroy(service: *mut c_void);
    normjit_norm(service: *mut c_void, spec: *const Spec, tensors: *const Tensors, stream: Stream,
                 options: *const LaunchOptions, error: Text) -> Status;
    normjit_layer_norm(service: *mut c_void, spec: *const Spec, tensors: *const Tensors, stream: Stream,
                       options: *const LaunchOptions, error: Text) -> Status;
    normjit_workspace_bytes(service: *mut c_void, spec: *const Spec, bytes: *mut usize, error: Text) -> Status;
    normjit_prepare(service: *mut c_void, spec: *const Spec, options: *const PrepareOptions, kernel: *mut *mut c_void,
                    error: Text) -> Status;
    normjit_kernel_launch(kernel: *const c_void, tensors: *const Tensors, stream: Stream,
                          options: *const LaunchOptions) -> Status;
    normjit_kernel_check(kernel: *const c_void, tensors: *const Tensors, error: Text) -> Status;
    normjit_kernel_workspace_bytes(kernel: *const c_void) -> usize;
    normjit_node_offset(kernel: *const c_void, operand: i32, offset: *mut usize, error: Text) -> Status;
    normjit_kernel_describe(kernel: *const c_void, json: Text, error: Text) -> Status;
    normjit_kernel_release(kernel: *mut c_void);
    normjit_freeze(service: *mut c_void, when_missing: i32, error: Text) -> Status;
    normjit_wait_for_compiles(service: *mut c_void);
    normjit_counters(service: *mut c_void, json: Text, error: Text) -> Status;
    normjit_prometheus(service: *mut c_void, labels: *const Label, label_count: usize, text: Text, error: Text) -> Status;
    normjit_environment(service: *mut c_void, json: Text, error: Text) -> Status;
    normjit_prebuild(service: *mut c_void, set: *const KernelSet, jobs: i32, dry_run: i32,
                     progress: Option<ProgressCallback>, user: *mut c_void, json: Text, error: Text) -> Status;
    normjit_export_pack(service: *mut c_void, path: *const c_char, set: *const KernelSet, json: Text, error: Text) -> Status;
    normjit_import(service: *mut c_void, sources: *const c_char, json: Text, error: Text) -> Status;
    normjit_add_layer(service: *mut c_void, pack: *const c_void, size: usize, signature: *const c_char, error: Text) -> Status;
    normjit_entries(service: *mut c_void, json: Text, error: Text) -> Status;
    normjit_verify(service: *mut c_void, quarantine: i32, json: Text, error: Text) -> Status;
    normjit_prune(service: *mut c_void, max_bytes: i64, dry_run: i32, json: Text, error: Text) -> Status;
    normjit_why(service: *mut c_void, spec: *const Spec, arch: *const c_char, json: Text, error: Text) -> Status;
    normjit_render(service: *mut c_void, spec: *const Spec, arch: *const c_char, rows_hint: i64, plan: *const c_char,
                   source: Text, error: Text) -> Status;
    normjit_remember(service: *mut c_void, spec: *const Spec, rows: i64, plan: *const c_char, error: Text) -> Status;
}

#[link(name = "dl")] // a part of libc from glibc 2.34 on
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *mut c_char;
}
const RTLD_NOW: c_int = 2;

/// A call that failed: a status, and a sentence that says what was asked, what is allowed and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Error {
    pub status: Status,
    pub message: String,
}
impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}
impl std::error::Error for Error {}

fn bad_argument(message: String) -> Error {
    Error { status: BAD_ARGUMENT, message }
}

/// A text for C; [`BAD_ARGUMENT`] if it has a 0 byte.
fn c_text(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| bad_argument(format!("{:?} has a 0 byte", text)))
}

/// libnormjit. It stays loaded.
pub struct Library {
    functions: Functions,
}

impl Library {
    /// Opens the library that `NORMJIT_LIBRARY` names, else `libnormjit.so.1` where the loader looks.
    pub fn open() -> Result<&'static Library, Error> {
        match std::env::var("NORMJIT_LIBRARY") {
            Ok(path) if !path.is_empty() => Self::open_at(&path),
            _ => Self::open_at(&format!("libnormjit.so.{}", ABI_VERSION)),
        }
    }

    /// Opens a library by its path or name. Its functions are kept for the life of the process, as the library is.
    pub fn open_at(path: &str) -> Result<&'static Library, Error> {
        let name = c_text(path)?;
        let library = unsafe { dlopen(name.as_ptr(), RTLD_NOW) };
        if library.is_null() {
            let why = unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy();
            return Err(bad_argument(format!("{} cannot be opened ({})", path, why)));
        }
        let functions = unsafe { Functions::of(library) }
            .map_err(|name| bad_argument(format!("{} has no {}: it is older than this crate", path, name)))?;
        let version = unsafe { (functions.normjit_abi_version)() };
        if version != ABI_VERSION {
            return Err(bad_argument(format!("the ABI version of {} is {}, not {}", path, version, ABI_VERSION)));
        }
        Ok(Box::leak(Box::new(Library { functions })))
    }

    /// The functions as C has them.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// "0.2.0".
    pub fn version(&self) -> &str {
        unsafe { CStr::from_ptr((self.functions.normjit_version)()) }.to_str().unwrap_or("?")
    }

    /// Parses "layernorm/cols=4096/f16/eps=1e-05/wb" to a canonical spec.
    pub fn parse_spec(&self, text: &str) -> Result<Spec, Error> {
        let (text, mut spec) = (c_text(text)?, Spec::default());
        self.call(|error| unsafe { (self.functions.normjit_spec_parse)(text.as_ptr(), &mut spec, error) })?;
        Ok(spec)
    }

    /// Validates a spec; its canonical text.
    pub fn spec_text(&self, spec: &Spec) -> Result<String, Error> {
        self.text(|text, error| unsafe { (self.functions.normjit_spec_text)(spec, text, error) })
    }

    /// Makes a service that works as the environment says. Keep one for the life of the process.
    pub fn service(&'static self) -> Result<Service, Error> {
        unsafe { self.service_with(&Options::default()) }
    }

    /// Makes a service.
    ///
    /// # Safety
    /// The pointers of `options` must be null or what c_api.h says, its callbacks thread-safe.
    pub unsafe fn service_with(&'static self, options: &Options) -> Result<Service, Error> {
        let mut handle = ptr::null_mut();
        self.call(|error| (self.functions.normjit_service_create)(options, &mut handle, error))?;
        Ok(Service { library: self, handle })
    }

    /// Makes a call that takes `char **error` last.
    fn call(&self, function: impl FnOnce(Text) -> Status) -> Result<(), Error> {
        let mut error = ptr::null_mut();
        let status = function(&mut error);
        if status == OK {
            return Ok(());
        }
        let message = match self.take(error) {
            Some(message) => message,
            None => self.status_message(status).to_string(),
        };
        Err(Error { status, message })
    }

    /// Makes a call that stores a text.
    fn text(&self, function: impl FnOnce(Text, Text) -> Status) -> Result<String, Error> {
        let mut text = ptr::null_mut();
        self.call(|error| function(&mut text, error))?;
        Ok(self.take(text).unwrap_or_default())
    }

    /// A text that the library has made, which is released.
    fn take(&self, text: *mut c_char) -> Option<String> {
        if text.is_null() {
            return None;
        }
        let taken = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        unsafe { (self.functions.normjit_free)(text) };
        Some(taken)
    }

    fn status_message(&self, status: Status) -> &str {
        unsafe { CStr::from_ptr((self.functions.normjit_status_message)(status)) }.to_str().unwrap_or("?")
    }
}

/// `normjit_service`: finds, makes and launches kernels. Any number of threads may use it.
pub struct Service {
    library: &'static Library,
    handle: *mut c_void,
}
unsafe impl Send for Service {}
unsafe impl Sync for Service {}

impl Drop for Service {
    fn drop(&mut self) {
        unsafe { (self.library.functions.normjit_service_destroy)(self.handle) }
    }
}

impl Service {
    /// The handle, for [`Library::functions`]. It ends with the service.
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// Finds or makes the kernel for these tensors on the current context's device, and launches it.
    ///
    /// # Safety
    /// The pointers of `tensors` must be device memory as the spec says, and live until the launch has ended; `stream`
    /// must be one of the current context.
    pub unsafe fn norm(&self, spec: &Spec, tensors: &Tensors, stream: Stream) -> Result<(), Error> {
        self.library.call(|error| (self.library.functions.normjit_norm)(self.handle, spec, tensors, stream, ptr::null(), error))
    }

    /// Bytes of workspace that suffice for every launch of this spec by [`Service::norm`]; mostly 0.
    pub fn workspace_bytes(&self, spec: &Spec) -> Result<usize, Error> {
        let mut bytes = 0;
        self.library
            .call(|error| unsafe { (self.library.functions.normjit_workspace_bytes)(self.handle, spec, &mut bytes, error) })?;
        Ok(bytes)
    }

    /// The kernel of a spec, loaded and ready.
    ///
    /// # Safety
    /// `options.plan` must be null or a text of C.
    pub unsafe fn prepare(&self, spec: &Spec, options: &PrepareOptions) -> Result<Kernel, Error> {
        let mut handle = ptr::null_mut();
        self.library.call(|error| (self.library.functions.normjit_prepare)(self.handle, spec, options, &mut handle, error))?;
        Ok(Kernel { library: self.library, handle })
    }

    /// `when_missing`: [`THAWED`], [`FROZEN_WARN`] or [`FROZEN_ERROR`].
    pub fn freeze(&self, when_missing: i32) -> Result<(), Error> {
        self.library.call(|error| unsafe { (self.library.functions.normjit_freeze)(self.handle, when_missing, error) })
    }

    /// Compiles every kernel that these specs can ask for on these architectures ("sm_90", "native") into the cache, so
    /// many at once (0: one for each core); a report in JSON, which counts those that failed.
    pub fn prebuild(&self, specs: &[&str], archs: &[&str], jobs: i32) -> Result<String, Error> {
        let texts = |all: &[&str]| all.iter().map(|text| c_text(text)).collect::<Result<Vec<_>, _>>();
        let (specs, archs) = (texts(specs)?, texts(archs)?);
        let pointers = |all: &[CString]| all.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
        let (spec_pointers, arch_pointers) = (pointers(&specs), pointers(&archs));
        let set = KernelSet {
            specs: spec_pointers.as_ptr(),
            spec_count: specs.len(),
            archs: arch_pointers.as_ptr(),
            arch_count: archs.len(),
            ..Default::default()
        };
        self.library.text(|json, error| unsafe {
            (self.library.functions.normjit_prebuild)(self.handle, &set, jobs, 0, None, ptr::null_mut(), json, error)
        })
    }

    /// Adds the bytes of a pack, which are copied, as a layer. `signature`: the text of its .minisig file.
    pub fn add_layer(&self, pack: &[u8], signature: Option<&str>) -> Result<(), Error> {
        let signature = signature.map(c_text).transpose()?;
        let signature_pointer = signature.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        self.library.call(|error| unsafe {
            (self.library.functions.normjit_add_layer)(self.handle, pack.as_ptr().cast(), pack.len(), signature_pointer, error)
        })
    }

    /// The counters as JSON.
    pub fn counters(&self) -> Result<String, Error> {
        self.library.text(|json, error| unsafe { (self.library.functions.normjit_counters)(self.handle, json, error) })
    }

    /// The counters as a page for Prometheus, with these labels, names and values, on each series.
    pub fn prometheus(&self, labels: &[(&str, &str)]) -> Result<String, Error> {
        let texts = labels
            .iter()
            .map(|(name, value)| Ok((c_text(name)?, c_text(value)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let given: Vec<Label> =
            texts.iter().map(|(name, value)| Label { name: name.as_ptr(), value: value.as_ptr() }).collect();
        self.library.text(|text, error| unsafe {
            (self.library.functions.normjit_prometheus)(self.handle, given.as_ptr(), given.len(), text, error)
        })
    }

    /// What normjit finds on this machine, as JSON.
    pub fn environment(&self) -> Result<String, Error> {
        self.library.text(|json, error| unsafe { (self.library.functions.normjit_environment)(self.handle, json, error) })
    }
}

/// `normjit_kernel`: compiled, loaded and ready. Any number of threads may use it; it may outlive its service.
pub struct Kernel {
    library: &'static Library,
    handle: *mut c_void,
}
unsafe impl Send for Kernel {}
unsafe impl Sync for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        unsafe { (self.library.functions.normjit_kernel_release)(self.handle) }
    }
}

impl Kernel {
    /// Launches; allocates nothing, unless it fails.
    ///
    /// # Safety
    /// As [`Service::norm`].
    pub unsafe fn launch(&self, tensors: &Tensors, stream: Stream, options: &LaunchOptions) -> Result<(), Error> {
        let status = (self.library.functions.normjit_kernel_launch)(self.handle, tensors, stream, options);
        if status == OK {
            return Ok(());
        }
        Err(Error { status, message: self.library.status_message(status).to_string() })
    }

    /// Bytes of workspace that a launch needs, the first [`WORKSPACE_ZEROED`] of them zeroed once; 0 for most kernels.
    pub fn workspace_bytes(&self) -> usize {
        unsafe { (self.library.functions.normjit_kernel_workspace_bytes)(self.handle) }
    }

    /// The byte offset of an operand's pointer in the block of a captured launch's kernel node.
    pub fn node_offset(&self, operand: i32) -> Result<usize, Error> {
        let mut offset = 0;
        self.library
            .call(|error| unsafe { (self.library.functions.normjit_node_offset)(self.handle, operand, &mut offset, error) })?;
        Ok(offset)
    }

    /// Spec, plan, device and origin, as JSON.
    pub fn describe(&self) -> Result<String, Error> {
        self.library.text(|json, error| unsafe { (self.library.functions.normjit_kernel_describe)(self.handle, json, error) })
    }
}
