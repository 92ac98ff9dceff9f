//! cuDNN's handles.

use cudarc::cudnn::{
    Cudnn, result,
    sys::{self, cudnnStatus_t::*},
};

use crate::rig::{Rig, on_fake_cuda};

#[test]
fn a_handle_belongs_to_a_stream() {
    on_fake_cuda(|| {
        let rig = Rig::new();
        let streams = [rig.stream(), rig.stream()];
        assert_eq!(result::get_version(), 91_900);
        let mut cudnn = Cudnn::new(streams[0].clone()).unwrap();
        let cudnn = std::sync::Arc::get_mut(&mut cudnn).unwrap();
        // SAFETY: nothing is computed.
        unsafe { cudnn.set_stream(streams[1].clone()) }.unwrap();
        // SAFETY: the stand-in checks handles.
        unsafe {
            let handle = result::create_handle().unwrap();
            result::set_stream(handle, streams[1].cu_stream().cast()).unwrap();
            let mut stream = std::ptr::null_mut();
            assert_eq!(sys::cudnnGetStream(handle, &mut stream), CUDNN_STATUS_SUCCESS);
            assert_eq!(stream, streams[1].cu_stream().cast());
            let wrong = result::set_stream(handle, 0x50 as _).map_err(|error| error.0);
            assert_eq!(wrong, Err(CUDNN_STATUS_BAD_PARAM));
            result::destroy_handle(handle).unwrap();
            assert_eq!(result::destroy_handle(handle).map_err(|error| error.0), Err(CUDNN_STATUS_BAD_PARAM));
        }
    });
}
