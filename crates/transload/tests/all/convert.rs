//! Numbers that are converted on the way.

use transload::{
    AllocSpec, Buffer, Conversion, Element, Region, RegionError, Request, Shape, TransferError,
    TransferManager,
};

fn manager() -> TransferManager {
    TransferManager::builder().host().build().unwrap()
}

fn conversion(from: Element, to: Element) -> Conversion {
    Conversion::new(from, to).unwrap()
}

/// Singles that are whole numbers, which all forms of 32 bits and more tell.
fn singles(count: usize) -> Vec<f32> {
    (0..count).map(|at| (at % 4099) as f32 - 77.0).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|of| of.to_le_bytes()).collect()
}

fn doubles(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    let doubles = numbers.into_iter().map(f64::from);
    doubles.flat_map(f64::to_le_bytes).collect()
}

/// Converts to doubles in a new buffer, and reads them.
fn doubled(manager: &TransferManager, src: impl Into<Region>, place: &str) -> Vec<u8> {
    let src = src.into();
    let len = 2 * src.shape().payload_bytes();
    let dst = manager.allocate(place.parse().unwrap(), AllocSpec::bytes(len));
    let dst = dst.unwrap();
    let request = Request::new(src, &dst).convert(conversion(Element::F32, Element::F64));
    let report = manager.submit(&request).wait().unwrap();
    assert_eq!(report.bytes(), len);
    manager.read_to_vec(&dst).unwrap()
}

#[test]
fn numbers_are_converted_wherever_they_lie() {
    let manager = manager();
    let numbers = singles(3_000_000);
    let at = |place: &str| {
        let len = 4 * numbers.len() as u64 + 3;
        let memory = manager.allocate(place.parse().unwrap(), AllocSpec::bytes(len));
        let memory = memory.unwrap().slice(3..len).unwrap();
        manager.copy_from_slice(&bytes(&numbers), &memory).unwrap();
        memory
    };
    let of = |pieces: &[std::ops::Range<usize>]| {
        doubles(
            pieces
                .iter()
                .flat_map(|piece| numbers[piece.clone()].to_vec()),
        )
    };
    for from in ["cpu:0", "cpu:0/shared", "cpu:0/file"] {
        // At an odd address or place in the file.
        let src = at(from);
        for to in ["cpu:0", "cpu:0/shared"] {
            assert!(
                doubled(&manager, &src, to) == doubles(numbers.iter().copied()),
                "{from} {to}"
            );
            // Short rows, long rows in planes, pieces of unequal length, one of them twice, blocks.
            let rows = Region::new(&src, 8, Shape::pitched(40, 3000, 100).unwrap()).unwrap();
            let pieces: Vec<_> = (0..3000).map(|row| 2 + 25 * row..12 + 25 * row).collect();
            assert!(doubled(&manager, rows, to) == of(&pieces));
            let shape = Shape::pitched_3d(60_000, 4, 80_000, 3, 1_000_000).unwrap();
            let planes = Region::new(&src, 0, shape).unwrap();
            let pieces = (0..12).map(|row| 250_000 * (row / 4) + 20_000 * (row % 4));
            let pieces: Vec<_> = pieces.map(|at| at..at + 15_000).collect();
            assert!(doubled(&manager, planes, to) == of(&pieces));
            let spans = Region::spans(&src, &[4000..4004, 0..400_000, 4000..4004, 8..16]).unwrap();
            assert!(
                doubled(&manager, spans, to) == of(&[1000..1001, 0..100_000, 1000..1001, 2..4])
            );
            let blocks = Region::blocks(&src, 400, &[7, 3, 4000]).unwrap();
            let pieces = [700..800, 300..400, 400_000..400_100];
            assert!(doubled(&manager, blocks, to) == of(&pieces));
            assert!(doubled(&manager, src.slice(4..4).unwrap(), to).is_empty());
        }
    }
}

#[test]
fn converted_numbers_go_to_pieces_too() {
    let manager = manager();
    let numbers = singles(3000);
    let src = manager.adopt(bytes(&numbers)).unwrap();
    let dst = manager.adopt(vec![0xeeu8; 8 * 4000]).unwrap();
    let convert = |to: Region| {
        let request = Request::new(&src, to).convert(conversion(Element::F32, Element::F64));
        manager.submit(&request).wait().unwrap();
        manager.read_to_vec(&dst).unwrap()
    };
    let rows = Region::new(&dst, 0, Shape::pitched(240, 100, 320).unwrap()).unwrap();
    let found = convert(rows);
    for row in 0..100 {
        let numbers = numbers[30 * row..30 * row + 30].iter().copied();
        assert!(found[320 * row..][..240] == doubles(numbers));
        assert!(
            found[320 * row + 240..][..80]
                .iter()
                .all(|byte| *byte == 0xee)
        );
    }
    let blocks: Vec<u32> = (0..300).map(|at| 399 - at).collect();
    let found = convert(Region::blocks(&dst, 80, &blocks).unwrap());
    assert!(found[399 * 80..] == doubles(numbers[..10].iter().copied()));
    assert!(found[100 * 80..101 * 80] == doubles(numbers[2990..].iter().copied()));
}

#[test]
fn what_cannot_be_converted_is_refused() {
    let manager = manager();
    let [src, dst, odd]: [Buffer; 3] =
        [64, 128, 66].map(|len| manager.adopt(vec![0u8; len]).unwrap());
    let double = conversion(Element::F32, Element::F64);
    let refused = |request: Request| manager.submit(&request.convert(double)).wait().unwrap_err();
    for (src, found_bytes) in [
        (Region::from(&odd), 66),
        (Region::spans(&src, &[0..6, 6..12]).unwrap(), 12),
        (
            Region::new(&src, 0, Shape::pitched(6, 2, 8).unwrap()).unwrap(),
            12,
        ),
    ] {
        let error = refused(Request::new(src, &dst));
        let TransferError::Region(RegionError::Elements {
            found_bytes: found,
            element_bytes: 4,
            ..
        }) = error
        else {
            panic!("{error}");
        };
        assert_eq!(found, found_bytes);
    }
    let pieces = Region::spans(&dst, &[0..4, 4..128]).unwrap();
    let error = refused(Request::new(&src, pieces));
    assert!(
        matches!(
            error,
            TransferError::Region(RegionError::Elements {
                element_bytes: 8,
                ..
            })
        ),
        "{error}"
    );
    let error = refused(Request::new(&src, &src));
    assert!(
        matches!(
            error,
            TransferError::LengthMismatch {
                src_bytes: 128,
                dst_bytes: 64
            }
        ),
        "{error}"
    );
    let error = refused(Request::new(dst.slice(0..64).unwrap(), &dst));
    assert!(matches!(error, TransferError::Overlap { .. }), "{error}");
    let error = refused(Request::new(&src, &dst).verify());
    assert_eq!(error, TransferError::VerifyConversion);
    let file = manager
        .allocate("cpu:0/file".parse().unwrap(), AllocSpec::bytes(128))
        .unwrap();
    // The host's engine writes no numbers to a file; it converts them into slots, and writes those.
    let numbers: Vec<u8> = (0..16)
        .flat_map(|number| (number as f32).to_le_bytes())
        .collect();
    manager.copy_from_slice(&numbers, &src).unwrap();
    let request = Request::new(&src, &file).convert(double);
    manager.submit(&request).wait().unwrap();
    let wide: Vec<u8> = (0..16)
        .flat_map(|number| f64::from(number).to_le_bytes())
        .collect();
    assert_eq!(manager.read_to_vec(&file).unwrap(), wide);
    let error = Conversion::new(Element::F32, Element::F8E4M3).unwrap_err();
    assert_eq!(
        error.to_string(),
        "F32 is not converted to F8E4M3: F64, F32, F16 and BF16 are what numbers are converted to"
    );
}
