//! Environment variables that the program sets for the drivers that it loads.

/// Keeps Mesa's Vulkan layer for the choice of a device (`VK_LAYER_MESA_device_select`) from complaining on
/// standard error that there is no `XDG_RUNTIME_DIR`, as in a container or over ssh.
///
/// The layer asks the Wayland compositor which device it draws with, and libwayland looks for the
/// compositor's socket in that folder. Without the folder there is no compositor to ask. So libwayland is
/// given the path of a socket on which no program listens, which it accepts without printing an error. The
/// layer's own switch, `NODEVICE_SELECT`, would also disable the user's `MESA_VK_DEVICE_SELECT`.
///
/// Call it before the process has a second thread.
pub(crate) fn quieten() {
    #[cfg(target_os = "linux")]
    if !has_compositor(|name| std::env::var_os(name)) {
        listen_nowhere();
    }
}

/// Whether libwayland would look for a compositor: it was handed a connection, knows the folder of the
/// socket, or the path of the socket itself (`wl_display_connect(3)`).
#[cfg(target_os = "linux")]
fn has_compositor(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> bool {
    let is_absolute =
        |name| variable(name).is_some_and(|value| value.as_encoded_bytes().starts_with(b"/"));
    variable("WAYLAND_SOCKET").is_some()
        || is_absolute("XDG_RUNTIME_DIR")
        || is_absolute("WAYLAND_DISPLAY")
}

#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "the one line that the standard library cannot check"
)]
fn listen_nowhere() {
    // SAFETY: no other thread reads the environment meanwhile, for there is none: `main` begins with this.
    unsafe { std::env::set_var("WAYLAND_DISPLAY", "/dev/null") };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_compositor_that_can_be_reached_is_left_to_answer() {
        let has =
            |name: &str, value: &str| has_compositor(|asked| (asked == name).then(|| value.into()));
        assert!(has("XDG_RUNTIME_DIR", "/run/user/1000"));
        assert!(has("WAYLAND_DISPLAY", "/run/user/1000/wayland-1"));
        assert!(has("WAYLAND_SOCKET", "5"));
        // libwayland calls these invalid.
        assert!(!has("XDG_RUNTIME_DIR", "run"));
        assert!(!has("WAYLAND_DISPLAY", "wayland-1"));
        assert!(!has("DISPLAY", ":0"));
    }
}
