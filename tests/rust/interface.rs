// SPDX-License-Identifier: Apache-2.0
//! What rust_test.py runs.
//!
//!     interface layout            prints structures, constants and functions of the crate
//!     interface calls FOLDER      calls libnormjit, above the driver that only counts, with a cache in a folder

use std::ffi::{c_void, CStr, CString};
use std::os::raw::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use normjit_sys::*;

fn print_layout() {
    for (name, size, members) in layouts() {
        println!("structure {} {}", name, size);
        for (member, offset, bytes) in members {
            println!("member {}.{} {} {}", name, member, offset, bytes);
        }
    }
    let rows = InputRows::default();
    let at = |member: *const u8| member as usize - &rows as *const InputRows as usize;
    println!("structure normjit_input_rows {}", std::mem::size_of::<InputRows>());
    println!("structure normjit_output_rows {}", std::mem::size_of::<OutputRows>());
    for (name, offset) in [
        ("pointer", at((&rows.pointer as *const *const c_void).cast())),
        ("n", at((&rows.n as *const i64).cast())),
        ("outer", at((&rows.outer as *const i64).cast())),
        ("inner", at((&rows.inner as *const i64).cast())),
    ] {
        println!("member normjit_input_rows.{} {} 8", name, offset);
        println!("member normjit_output_rows.{} {} 8", name, offset);
    }
    println!("structure normjit_label {}", std::mem::size_of::<Label>());
    println!("member normjit_label.name 0 8\nmember normjit_label.value 8 8");
    for (name, value) in constants() {
        println!("constant NORMJIT_{} {}", name, value);
    }
    println!("constant NORMJIT_ABI_VERSION {}", ABI_VERSION);
    println!("constant NORMJIT_WORKSPACE_ZEROED {}", WORKSPACE_ZEROED);
    for name in function_names() {
        println!("function {}", name);
    }
}

static BEGUN: AtomicUsize = AtomicUsize::new(0);
static ENDED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn on_event(user: *mut c_void, event: *const Event) {
    assert_eq!(user as usize, 7);
    let event = &*event;
    assert!(CStr::from_ptr(event.spec).to_str().unwrap().starts_with("layernorm/cols=6"));
    match event.phase {
        BEGIN => BEGUN.fetch_add(1, Ordering::SeqCst),
        END => ENDED.fetch_add(1, Ordering::SeqCst),
        _ => 0,
    };
}

fn call(folder: &str) -> Result<(), Error> {
    let library = Library::open()?;
    assert!(library.version().starts_with("0."), "{}", library.version());
    assert!(Library::open_at("/nonexistent/libnormjit.so").err().unwrap().message.contains("/nonexistent"));

    // Texts, and mistakes that come back as errors with their sentence.
    let spec = library.parse_spec("layernorm/cols=64/f32/w")?;
    assert_eq!((spec.columns, spec.affine, spec.input), (64, WEIGHT, F32));
    assert_eq!(library.spec_text(&spec)?, "layernorm/cols=64/f32/eps=1e-05/w");
    let error = library.spec_text(&Spec { columns: -1, ..spec }).unwrap_err();
    assert_eq!(error.status, BAD_DIMENSION);
    assert!(error.to_string().contains("-1"), "{}", error);
    assert_eq!(library.parse_spec("layer\0norm").unwrap_err().status, BAD_ARGUMENT);

    let directory = CString::new(folder).unwrap();
    let options = Options {
        ignore_environment: YES,
        cache_directory: directory.as_ptr(),
        on_event: Some(on_event),
        event_user: 7 as *mut c_void,
        ..Default::default()
    };
    let service = unsafe { library.service_with(&options)? };
    assert!(service.environment()?.contains("stand-in"));
    assert_eq!(service.workspace_bytes(&spec)?, 0);

    // Launches, which the driver counts.
    let launches = unsafe {
        #[link(name = "dl")]
        extern "C" {
            fn dlopen(path: *const i8, flags: c_int) -> *mut c_void;
            fn dlsym(library: *mut c_void, name: *const i8) -> *mut c_void;
        }
        let cuda = dlopen(b"libcuda.so.1\0".as_ptr().cast(), 2);
        std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(dlsym(cuda, b"stand_in_launches\0".as_ptr().cast()))
    };
    let address = |number: usize| (number << 20) as *mut c_void;
    let mut tensors = Tensors { rows: 100, ..Default::default() };
    tensors.x.pointer = address(1);
    tensors.y.pointer = address(2);
    assert_eq!(unsafe { service.norm(&spec, &tensors, std::ptr::null_mut()) }.unwrap_err().status, NULL_POINTER);
    tensors.weight.pointer = address(3);
    let before = launches();
    unsafe { service.norm(&spec, &tensors, std::ptr::null_mut())? };
    assert_eq!(launches(), before + 1);
    assert!(BEGUN.load(Ordering::SeqCst) >= 2, "a compile and a load");
    assert_eq!(BEGUN.load(Ordering::SeqCst), ENDED.load(Ordering::SeqCst));

    let kernel = unsafe { service.prepare(&spec, &PrepareOptions { rows_hint: 100, ..Default::default() })? };
    assert_eq!(kernel.workspace_bytes(), 0);
    assert!(kernel.describe()?.contains("layernorm/cols=64/f32/eps=1e-05/w"));
    assert!(kernel.node_offset(OPERAND_X)? < 4096);
    assert_eq!(kernel.node_offset(OPERAND_GATE).unwrap_err().status, UNEXPECTED_POINTER);
    service.freeze(FROZEN_ERROR)?;
    let unknown = Spec { columns: 65, affine: 0, ..spec };
    tensors.weight.pointer = std::ptr::null();
    assert_eq!(unsafe { service.norm(&unknown, &tensors, std::ptr::null_mut()) }.unwrap_err().status, NOT_CACHED);

    // A kernel serves several threads, and outlives its service.
    let counters = service.counters()?;
    assert!(counters.contains("\"compiles\": ") && !counters.contains("\"compiles\": 0"), "{}", counters);
    assert!(service.prometheus(&[("model", "bert")])?.contains("normjit_misses_total{model=\"bert\"} "));
    assert_eq!(service.prometheus(&[("my model", "")]).unwrap_err().status, BAD_ARGUMENT);
    assert_eq!(service.add_layer(b"no pack", None).unwrap_err().status, BAD_ARGUMENT);
    drop(service);
    let kernel = std::sync::Arc::new(kernel);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let kernel = kernel.clone();
            std::thread::spawn(move || {
                let mut tensors = Tensors { rows: 100, ..Default::default() };
                tensors.x.pointer = (1usize << 20) as *const c_void;
                tensors.y.pointer = (2usize << 20) as *mut c_void;
                tensors.weight.pointer = (3usize << 20) as *const c_void;
                let before = launches();
                for _ in 0..100 {
                    unsafe { kernel.launch(&tensors, std::ptr::null_mut(), &LaunchOptions::default()).unwrap() };
                }
                assert_eq!(launches(), before + 100, "of this thread");
                tensors.rows = -1;
                let error = unsafe { kernel.launch(&tensors, std::ptr::null_mut(), &LaunchOptions::default()) };
                assert_eq!(error.unwrap_err().status, BAD_ROWS);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("layout") => print_layout(),
        Some("calls") => call(&arguments[2]).unwrap(),
        _ => panic!("layout, or calls FOLDER"),
    }
}
