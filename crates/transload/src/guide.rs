//! The programs of the guide compile and run. Each function stands for the program of a page, and says what the program shows.

#[cfg(adapters)]
#[doc = include_str!("../../../docs/guide/upload.md")]
fn upload_adds_up_a_file() {}

#[cfg(adapters)]
#[doc = include_str!("../../../docs/guide/readback.md")]
fn readback_takes_every_frame() {}

#[cfg(adapters)]
#[doc = include_str!("../../../docs/guide/own-device.md")]
fn adopt_shares_a_buffer_with_a_program() {}

#[doc = include_str!("../../../docs/guide/share.md")]
fn share_takes_memory_where_it_lies() {}

#[cfg(remote)]
#[doc = include_str!("../../../docs/guide/nodes.md")]
fn nodes_lend_memory() {}

#[doc = include_str!("../../../docs/guide/batch.md")]
fn batch_starts_together() {}

#[doc = include_str!("../../../docs/guide/deadline.md")]
fn deadline_and_cancel_tell_how_far_a_copy_came() {}

#[doc = include_str!("../../../docs/guide/verify.md")]
fn verify_compares_both_ends() {}

#[doc = include_str!("../../../docs/guide/errors.md")]
fn errors_say_what_to_do() {}

#[doc = include_str!("../../../docs/guide/profile.md")]
fn profile_serves_a_later_process() {}

#[cfg(all(feature = "tracing", feature = "metrics"))]
#[doc = include_str!("../../../docs/guide/observe.md")]
fn observe_counts_bytes() {}

#[doc = include_str!("../../../docs/guide/backend.md")]
fn backend_conforms() {}

#[doc = include_str!("../../../docs/guide/no-os.md")]
fn no_os_turns_the_engine() {}

/// A program whose device is absent says so and ends well. That counts as skipped, and as a failure where the device was
/// installed for the tests.
///
/// ```
/// use std::io::Write;
/// use transload::cuda_backend::Cuda;
///
/// // The programs look for these alone: `discover` finds adapters of OpenGL, too.
/// let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
/// let adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
/// let adapters = if adapters.is_empty() { Err("no adapter is here".to_owned()) } else { Ok(()) };
/// let cuda = Cuda::discover().map(drop).map_err(|error| error.to_string());
/// let drawn = ["upload_adds_up_a_file", "readback_takes_every_frame", "adopt_shares_a_buffer_with_a_program"];
/// let shared = ["share_takes_memory_where_it_lies (CUDA)"];
/// for (found, installed, programs) in [
///     (adapters, "TRANSLOAD_ADAPTER", &drawn[..]),
///     (cuda, "TRANSLOAD_CUDA_DRIVER", &shared[..]),
/// ] {
///     let Err(reason) = found else { continue };
///     assert!(std::env::var_os(installed).is_none(), "{installed} is set, but {reason}");
///     if let Some(file) = std::env::var_os("TRANSLOAD_SKIPS") {
///         let mut file = std::fs::File::options().append(true).create(true).open(file)?;
///         for program in programs {
///             writeln!(file, "guide::{program}: {reason}")?;
///         }
///     }
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[cfg(all(adapters, cuda))]
fn absent_devices_are_skipped() {}
