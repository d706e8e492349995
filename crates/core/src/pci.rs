//! Addresses on the PCI bus.

use core::fmt;
use core::str::FromStr;

use crate::ParseError;

/// A place on the PCI bus, written `0000:01:00.0`: domain, bus, device, function, in hexadecimal digits.
/// The same card has the same address under every driver interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The domain, 16 bits wide; some virtual machines count on to 32.
    pub domain: u32,
    /// The bus.
    pub bus: u8,
    /// The device on the bus, at most 31.
    pub device: u8,
    /// The function of the device, at most 7.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl fmt::Debug for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PciAddress {
    type Err = ParseError;

    /// The domain may be left out when it is 0.
    fn from_str(text: &str) -> Result<PciAddress, ParseError> {
        let error = || ParseError::device(text);
        let number = |digits: &str, most: u32| {
            let hexadecimal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
            let number = u32::from_str_radix(digits, 16).ok()?;
            (hexadecimal && number <= most).then_some(number)
        };
        let (place, function) = text.rsplit_once('.').ok_or_else(error)?;
        let (place, device) = place.rsplit_once(':').ok_or_else(error)?;
        let (domain, bus) = place.rsplit_once(':').unwrap_or(("0", place));
        Ok(PciAddress {
            domain: number(domain, u32::MAX).ok_or_else(error)?,
            bus: number(bus, 0xff).ok_or_else(error)? as u8,
            device: number(device, 0x1f).ok_or_else(error)? as u8,
            function: number(function, 7).ok_or_else(error)? as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn addresses_round_trip_and_the_domain_is_optional() {
        for text in ["0000:01:00.0", "10000:ff:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        let short: PciAddress = "65:00.1".parse().unwrap();
        assert_eq!(short.to_string(), "0000:65:00.1");
        for text in [
            "",
            "01:00",
            "0000:100:00.0",
            "0000:01:20.0",
            "0000:01:00.8",
            "+1:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
