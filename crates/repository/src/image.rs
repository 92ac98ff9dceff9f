//! The built-in step `image`, from its configuration.

use std::sync::Arc;

use paternoster_config::{
    SettingError,
    model::{ColorName, ImageStepSettings, LayoutName, ResampleName, ResizeTo},
};
use paternoster_image::{
    Color, DEFAULT_MAX_PIXELS, Elements, ImageOptions, Layout, Normalization, Resample, Resize, Size,
};
use paternoster_model::DataType;
use paternoster_pipeline::BuiltIn;

/// Creates the step.
///
/// # Errors
/// Names the key that does not go with the others.
pub(super) fn built_in(step: &ImageStepSettings) -> Result<Arc<dyn BuiltIn>, SettingError> {
    let color = match step.color {
        None | Some(ColorName::Rgb) => Color::Rgb,
        Some(ColorName::Bgr) => Color::Bgr,
        Some(ColorName::Gray) => Color::Gray,
    };
    let options = ImageOptions {
        resize: step.resize.as_ref().map(resize).transpose()?,
        resample: match step.resample {
            None | Some(ResampleName::Bilinear) => Resample::Bilinear,
            Some(ResampleName::Nearest) => Resample::Nearest,
            Some(ResampleName::Bicubic) => Resample::Bicubic,
            Some(ResampleName::Lanczos) => Resample::Lanczos,
        },
        crop: step.crop.as_ref().map(|size| Size { height: size.height.0, width: size.width.0 }),
        color,
        layout: match step.layout {
            None | Some(LayoutName::Nchw) => Layout::Nchw,
            Some(LayoutName::Nhwc) => Layout::Nhwc,
        },
        elements: elements(step, color.channels())?,
        max_pixels: step.max_pixels.map_or(DEFAULT_MAX_PIXELS, |pixels| pixels.0.into()),
    };
    Ok(Arc::new(paternoster_image::ImageStep::new(options)))
}

fn resize(to: &ResizeTo) -> Result<Resize, SettingError> {
    match (to.shortest_edge, to.height, to.width) {
        (Some(edge), None, None) => Ok(Resize::ShortestEdge(edge.0)),
        (None, Some(height), Some(width)) => Ok(Resize::To(Size { height: height.0, width: width.0 })),
        _ => Err("resize: expected either shortest_edge, or height and width".into()),
    }
}

fn elements(step: &ImageStepSettings, channels: usize) -> Result<Elements, SettingError> {
    match step.dtype.map_or(DataType::Fp32, |dtype| dtype.0.0) {
        DataType::Fp32 => {}
        DataType::Uint8 if step.scale.is_none() && step.mean.is_none() && step.std.is_none() => {
            return Ok(Elements::Uint8);
        }
        DataType::Uint8 => return Err("scale, mean and std go with the dtype FP32".into()),
        other => return Err(format!("dtype: expected FP32 or UINT8, but found {other}").into()),
    }
    let by_channel = |key: &str, given: Vec<f64>| match given.len() {
        1 => Ok(given.repeat(channels)),
        count if count == 0 || count == channels => Ok(given),
        count => {
            let message = format!("{key}: expected one number or {channels}, one for each channel, but found {count}");
            Err(SettingError::from(message))
        }
    };
    let mean = step.mean.iter().flatten().map(|mean| mean.0).collect();
    let std = step.std.iter().flatten().map(|std| std.0).collect();
    let usual = Normalization::default();
    Ok(Elements::Fp32(Normalization {
        scale: step.scale.map_or(usual.scale, |scale| scale.0),
        mean: by_channel("mean", mean)?,
        std: by_channel("std", std)?,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn built(keys: serde_json::Value) -> Result<Arc<dyn BuiltIn>, SettingError> {
        let mut step = json!({ "inputs": { "IMAGE": "IMAGE" }, "outputs": { "pixels": "pixels" } });
        step.as_object_mut().expect("an object").extend(keys.as_object().expect("an object").clone());
        built_in(&serde_json::from_value(step).map_err(|fault| SettingError::from(fault.to_string()))?)
    }

    #[test]
    fn keys_decide_the_output() {
        let dims = |keys| {
            let step = built(keys).expect("sound");
            (step.outputs()[0].datatype, step.outputs()[0].dims.to_vec())
        };
        assert_eq!(dims(json!({})), (DataType::Fp32, vec![3, -1, -1]));
        assert_eq!(dims(json!({ "resize": { "shortest_edge": 8 } })), (DataType::Fp32, vec![3, -1, -1]));
        let resized = json!({ "resize": { "height": 8, "width": 9 }, "dtype": "UINT8", "layout": "NHWC" });
        assert_eq!(dims(resized), (DataType::Uint8, vec![8, 9, 3]));
        let cropped = json!({ "resize": { "shortest_edge": 8 }, "crop": { "height": 5, "width": 6 }, "color": "GRAY" });
        assert_eq!(dims(cropped), (DataType::Fp32, vec![1, 5, 6]));
    }

    #[test]
    fn keys_that_do_not_go_together_are_refused_by_name() {
        let fault = |keys| built(keys).expect_err("it is refused").to_string();
        let either = "resize: expected either shortest_edge, or height and width";
        assert_eq!(fault(json!({ "resize": { "height": 8 } })), either);
        assert_eq!(fault(json!({ "resize": { "height": 8, "width": 8, "shortest_edge": 8 } })), either);
        let two = "mean: expected one number or 3, one for each channel, but found 2";
        assert_eq!(fault(json!({ "mean": [0.5, 0.5] })), two);
        let three = "std: expected one number or 1, one for each channel, but found 3";
        assert_eq!(fault(json!({ "std": [1, 1, 1], "color": "GRAY" })), three);
        let floats = "scale, mean and std go with the dtype FP32";
        assert_eq!(fault(json!({ "dtype": "UINT8", "scale": 1 })), floats);
        assert_eq!(fault(json!({ "dtype": "FP16" })), "dtype: expected FP32 or UINT8, but found FP16");
        assert!(fault(json!({ "std": [0] })).contains("a number above 0"));
        assert!(fault(json!({ "crop": { "height": 0, "width": 1 } })).contains("1"));
    }
}
