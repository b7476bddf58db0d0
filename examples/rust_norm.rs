// SPDX-License-Identifier: Apache-2.0
//! LayerNorm of rows of 4096 numbers from Rust, by normjit-sys; libcuda is opened for the memory alone.
//!
//!     rustc --edition 2021 -O --crate-type rlib -o libnormjit_sys.rlib rust/src/lib.rs
//!     rustc --edition 2021 -O --extern normjit_sys=libnormjit_sys.rlib examples/rust_norm.rs
//!
//! or `cargo run --example rust_norm` in rust/. NORMJIT_LIBRARY names the library, else the loader finds it.

use std::ffi::c_void;
use std::os::raw::{c_char, c_int};
use std::process::exit;

#[link(name = "dl")]
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

type Pointer = u64; // CUdeviceptr

/// A function of the driver.
macro_rules! cuda {
    ($library:expr, $name:literal ($($type:ty),*)) => {
        std::mem::transmute::<*mut c_void, extern "C" fn($($type),*) -> c_int>(
            dlsym($library, concat!($name, "\0").as_ptr().cast()))
    };
}

fn must(result: c_int) {
    if result != 0 {
        eprintln!("CUDA error {}", result);
        exit(1);
    }
}

fn upload(cuda: *mut c_void, values: &[f32]) -> Pointer {
    let bytes = std::mem::size_of_val(values);
    let mut memory = 0;
    unsafe {
        must(cuda!(cuda, "cuMemAlloc_v2"(*mut Pointer, usize))(&mut memory, bytes));
        must(cuda!(cuda, "cuMemcpyHtoD_v2"(Pointer, *const c_void, usize))(memory, values.as_ptr().cast(), bytes));
    }
    memory
}

fn main() -> Result<(), normjit_sys::Error> {
    const ROWS: usize = 1000;
    const COLUMNS: usize = 4096;
    let cuda = unsafe { dlopen(b"libcuda.so.1\0".as_ptr().cast(), 2) };
    let mut context = std::ptr::null_mut();
    if cuda.is_null()
        || unsafe { cuda!(cuda, "cuInit"(u32))(0) } != 0
        || unsafe { cuda!(cuda, "cuDevicePrimaryCtxRetain"(*mut *mut c_void, c_int))(&mut context, 0) } != 0
    {
        println!("rust_norm needs an NVIDIA GPU");
        exit(77);
    }
    unsafe { must(cuda!(cuda, "cuCtxSetCurrent"(*mut c_void))(context)) };

    let input: Vec<f32> = (0..ROWS * COLUMNS).map(|i| (i % COLUMNS) as f32).collect(); // every row 0, 1, ..., 4095
    let (x, y) = (upload(cuda, &input), upload(cuda, &vec![-1.0; input.len()]));

    let service = normjit_sys::Library::open()?.service()?;
    let spec = normjit_sys::Spec { columns: COLUMNS as i64, activation: normjit_sys::RELU, ..Default::default() };
    let mut tensors = normjit_sys::Tensors { rows: ROWS as i64, ..Default::default() };
    tensors.x.pointer = x as *const c_void;
    tensors.y.pointer = y as *mut c_void;
    unsafe { service.norm(&spec, &tensors, std::ptr::null_mut())? };

    let mut output = vec![0f32; input.len()];
    let bytes = std::mem::size_of_val(&output[..]);
    unsafe { must(cuda!(cuda, "cuMemcpyDtoH_v2"(*mut c_void, Pointer, usize))(output.as_mut_ptr().cast(), y, bytes)) };
    let mean = (COLUMNS - 1) as f64 / 2.0;
    let deviation = (((COLUMNS * COLUMNS - 1) as f64) / 12.0).sqrt();
    let right = input
        .iter()
        .zip(&output)
        .all(|(&x, &y)| (f64::from(y) - ((f64::from(x) - mean) / deviation).max(0.0)).abs() < 1e-4);
    println!("{}: {}", service.counters()?, if right { "right" } else { "WRONG" });
    exit(if right { 0 } else { 1 })
}
