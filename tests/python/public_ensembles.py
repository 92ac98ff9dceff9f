"""Ensembles as people configure them for Triton: the structures of configurations in public repositories.

Each entry has a configuration's facts: steps, maps, datatypes, dims, batch sizes, fixed versions, and which models are
not ONNX. Two outputs have another name than in the source: an ONNX graph cannot have an input and an output of one
name, as models in Python may.
"""

from ensembles import Ensemble, kinds, step

PRE_POST = {"preprocess": "python", "postprocess": "python"}
LLM = {"preprocessing": "python", "tensorrt_llm": "tensorrtllm", "postprocessing": "python"}
SAMPLING = "end_id? UINT32[1] pad_id? UINT32[1] runtime_top_k? UINT32[1] runtime_top_p? FP32[1] temperature? FP32[1] \
    len_penalty? FP32[1] repetition_penalty? FP32[1] min_length? UINT32[1] presence_penalty? FP32[1] \
    random_seed? UINT64[1] beam_width? UINT32[1] streaming? BOOL[1]"
OF_SAMPLING = " ".join(kinds(SAMPLING))


def denoising(steps):
    """The steps of a diffusion whose loop is unrolled."""
    unrolled = []
    for number in range(steps):
        after = number + 1
        unrolled += [
            step("unet", f"sample=sample{number} timestep=timestep{number} encoder_hidden_states",
            f"noise=noise{number}"),
            step("scheduler", f"sample=sample{number} noise=noise{number} i=i{number}",
                 f"next_sample=sample{after} timestep=timestep{after} next_i=i{after}"),
        ]  # fmt: skip
    return unrolled


ENSEMBLES = {
    "inception": Ensemble(
        "triton-inference-server/server", 128, "INPUT BYTES[1]", "preprocessed_image FP32[299,299,3]",
        "OUTPUT FP32[1001]",
        [
            step("image_preprocess_nhwc_299x299x3_inception", "INPUT", "OUTPUT=preprocessed_image"),
            step("inception_graphdef", "input=preprocessed_image", "InceptionV3/Predictions/Softmax=OUTPUT"),
        ],
        {"image_preprocess_nhwc_299x299x3_inception": "custom", "inception_graphdef": "tensorflow_graphdef"},
    ),
    "scene_text": Ensemble(
        "triton-inference-server/tutorials", 256, "input_image UINT8[-1]",
        "preprocessed_image FP32[-1,-1,3] Sigmoid:0 FP32[-1,-1,1] concat_3:0 FP32[-1,-1,5] cropped_images FP32[1,32,100] \
         recognition_output FP32[26,37]",
        "recognized_text BYTES[-1]",
        [
            step("detection_preprocessing", "detection_preprocessing_input=input_image",
                 "detection_preprocessing_output=preprocessed_image"),
            step("text_detection", "input_images:0=preprocessed_image",
                 "feature_fusion/Conv_7/Sigmoid:0=Sigmoid:0 feature_fusion/concat_3:0=concat_3:0"),
            step("detection_postprocessing",
                 "detection_postprocessing_input_1=Sigmoid:0 detection_postprocessing_input_2=concat_3:0 \
                  detection_postprocessing_input_3=preprocessed_image",
                 "detection_postprocessing_output=cropped_images"),
            step("text_recognition", "input.1=cropped_images", "307=recognition_output"),
            step("recognition_postprocessing", "recognition_postprocessing_input=recognition_output",
                 "recognition_postprocessing_output=recognized_text"),
        ],
        {"detection_preprocessing": "python", "detection_postprocessing": "python",
        "recognition_postprocessing": "python"},
        style="commas",
    ),
    "deepocr": Ensemble(
        "watanka/ocr-trt", 1, "input_image UINT8[-1]",
        "preprocessed_image FP32[3,-1,-1] original_image_info INT32[4] detection_featuremap FP32[1,-1,-1] \
         cropped_images FP32[3,48,-1] recognition_output FP32[-1,97]",
        "recognized_text BYTES[-1]",
        [
            step("detection_preprocessing", "detection_preprocessing_input=input_image",
                 "detection_preprocessing_output=preprocessed_image original_image_info"),
            step("text_detection", "x=preprocessed_image", "sigmoid_0.tmp_0=detection_featuremap"),
            step("detection_postprocessing",
                 "detection_postprocessing_input=detection_featuremap original_image=input_image original_image_info",
                 "detection_postprocessing_output=cropped_images"),
            step("text_recognition", "x=cropped_images", "softmax_5.tmp_0=recognition_output"),
            step("recognition_postprocessing", "recognition_postprocessing_input=recognition_output",
                 "recognition_postprocessing_output=recognized_text"),
        ],
        {"detection_preprocessing": "python", "text_detection": "tensorrt_plan",
        "recognition_postprocessing": "python"},
        style="quotes",
    ),
    "bert": Ensemble(
        "triton-inference-server/tensorrtllm_backend", 200,
        "text_input BYTES[-1] bad_words? BYTES[-1] stop_words? BYTES[-1]",
        "_REQUEST_INPUT_LEN INT32[1] _INPUT_ID INT32[-1] _STOP_WORDS_IDS INT32[2,-1] _BAD_WORDS_IDS INT32[2,-1]",
        "out_logits FP32[-1]",
        [
            step("preprocessing", "QUERY=text_input BAD_WORDS_DICT=bad_words STOP_WORDS_DICT=stop_words",
                 "REQUEST_INPUT_LEN=_REQUEST_INPUT_LEN INPUT_ID=_INPUT_ID STOP_WORDS_IDS=_STOP_WORDS_IDS \
                  BAD_WORDS_IDS=_BAD_WORDS_IDS"),
            step("tensorrt_llm",
                 "input_ids=_INPUT_ID input_lengths=_REQUEST_INPUT_LEN stop_words_list=_STOP_WORDS_IDS \
                  bad_words_list=_BAD_WORDS_IDS",
                 "logits=out_logits"),
        ],
        {"preprocessing": "python", "tensorrt_llm": "tensorrtllm"},
    ),
    "language_model": Ensemble(
        "triton-inference-server/tensorrtllm_backend", 128,
        "INPUT_0 BYTES[-1] INPUT_1 UINT32[-1] INPUT_2 BYTES[-1] INPUT_3 BYTES[-1] " + SAMPLING,
        "_REQUEST_INPUT_LEN UINT32[1] _INPUT_ID UINT32[-1] _REQUEST_OUTPUT_LEN UINT32[-1] _TOKENS_BATCH INT32[-1,-1]",
        "OUTPUT_0 BYTES[-1,-1]",
        [
            step("preprocessing",
                 "QUERY=INPUT_0 REQUEST_OUTPUT_LEN=INPUT_1 BAD_WORDS_DICT=INPUT_2 STOP_WORDS_DICT=INPUT_3",
                 "REQUEST_INPUT_LEN=_REQUEST_INPUT_LEN INPUT_ID=_INPUT_ID OUTPUT_LEN=_REQUEST_OUTPUT_LEN"),
            step("tensorrt_llm",
                 "input_ids=_INPUT_ID input_lengths=_REQUEST_INPUT_LEN request_output_len=_REQUEST_OUTPUT_LEN " + OF_SAMPLING,
                 "output_ids=_TOKENS_BATCH"),
            step("postprocessing", "TOKENS_BATCH=_TOKENS_BATCH", "OUTPUT=OUTPUT_0"),
        ],
        LLM,
    ),
    "adapters": Ensemble(
        "jharthorn/dgx-spark-harness", 256, "QUERY BYTES[-1] LORA_ADAPTER_NAME? BYTES[-1]",
        "ensemble_input_id INT32[-1] ensemble_request_input_len INT32[1] ensemble_lora_names BYTES[-1] \
         ensemble_output_id INT32[-1]",
        "RESPONSE BYTES[-1]",
        [
            step("preprocessing", "QUERY LORA_ADAPTER_NAME",
                 "INPUT_ID=ensemble_input_id REQUEST_INPUT_LEN=ensemble_request_input_len LORA_NAMES=ensemble_lora_names"),
            step("tensorrt_llm",
                 "input_ids=ensemble_input_id input_lengths=ensemble_request_input_len lora_names=ensemble_lora_names",
                 "output_ids=ensemble_output_id"),
            step("postprocessing", "OUTPUT_ID=ensemble_output_id", "RESPONSE"),
        ],
        LLM,
        style="lists",
    ),
    "attention_rescoring": Ensemble(
        "wenet-e2e/wenet", 64, "WAV FP32[-1] WAV_LENS INT32[1]",
        "SPEECH FP32[-1,80] SPEECH_LENGTHS INT32[1] encoder_out FP32[-1,256] encoder_out_lens INT32[1] \
         beam_log_probs FP32[-1,10] beam_log_probs_idx INT64[-1,10]",
        "TRANSCRIPTS BYTES[1]",
        [
            step("feature_extractor", "wav=WAV wav_lens=WAV_LENS", "speech=SPEECH speech_lengths=SPEECH_LENGTHS"),
            step("encoder", "speech=SPEECH speech_lengths=SPEECH_LENGTHS",
                 "encoder_out encoder_out_lens beam_log_probs beam_log_probs_idx"),
            step("scoring",
                 "encoder_out encoder_out_lens batch_log_probs=beam_log_probs batch_log_probs_idx=beam_log_probs_idx",
                 "OUTPUT0=TRANSCRIPTS"),
        ],
        {"feature_extractor": "python", "scoring": "python"},
    ),
    "streaming_wenet": Ensemble(
        "wenet-e2e/wenet", 512, "WAV FP32[-1] WAV_LENS INT32[1]",
        "SPEECH FP32[-1,80] SPEECH_LENGTHS INT32[1] LOG_PROBS FP32[-1,10] LOG_PROBS_IDX INT64[-1,10] \
         CHUNK_OUT FP32[-1,256] CHUNK_OUT_LENS INT32[1]",
        "TRANSCRIPTS BYTES[1]",
        [
            step("feature_extractor", "wav=WAV wav_lens=WAV_LENS", "speech=SPEECH speech_lengths=SPEECH_LENGTHS"),
            step("encoder", "chunk_xs=SPEECH chunk_lens=SPEECH_LENGTHS",
                 "log_probs=LOG_PROBS log_probs_idx=LOG_PROBS_IDX chunk_out=CHUNK_OUT chunk_out_lens=CHUNK_OUT_LENS"),
            step("wenet",
                 "log_probs=LOG_PROBS log_probs_idx=LOG_PROBS_IDX chunk_out=CHUNK_OUT chunk_out_lens=CHUNK_OUT_LENS",
                 "OUTPUT0=TRANSCRIPTS"),
        ],
        {"feature_extractor": "python", "wenet": "python"},
        sequences=("feature_extractor", "encoder", "wenet"),
    ),
    "english_stt": Ensemble(
        "a guide to speech recognition", 8, "audio_signal FP64[-1]", "signal FP32[80,-1] asr_output FP32[-1,1025]",
        "decoded_texts BYTES[1]",
        [
            step("preprocessing_english_stt", "audio_signal", "processed_signal=signal"),
            step("onnx_english_stt", "signal", "output=asr_output"),
            step("postprocessing_english_stt", "asr_output", "decoded_texts"),
        ],
        {"preprocessing_english_stt": "python", "postprocessing_english_stt": "python"},
    ),
    "yolo_boxes": Ensemble(
        "davide-belfiori/clearml_triton_ensemble", None, "input UINT8[640,640,3]",
        "pre_out FP32[1,3,640,640] output0 FP32[1,84,8400]",
        "boxes FP32[-1,4] classes FP32[-1] scores FP32[-1]",
        [
            step("yolo_preprocessing", "pre_in=input", "pre_out"),
            step("yolov8n", "images=pre_out", "output0"),
            step("yolo_postprocessing", "post_in=output0", "post_b=boxes post_c=classes post_s=scores"),
        ],
        {"yolo_preprocessing": "python", "yolo_postprocessing": "python"},
        style="colons",
    ),
    "yolo_dims": Ensemble(
        "pl9632008/triton-examples", None, "ensemble_input UINT8[-1,-1,-1] ensemble_dims INT32[-1]",
        "preprocessed_image FP32[1,3,640,640] yolo_output FP32[1,84,8400] dims_of_output INT32[-1]",
        "ensemble_output FP32[-1]",
        [
            step("preprocess", "preprocess_input=ensemble_input", "preprocess_output=preprocessed_image"),
            step("yolo", "images=preprocessed_image", "output0=yolo_output"),
            step("dims", "dims_input=ensemble_dims", "dims_output=dims_of_output"),
            step("postprocess", "postprocess_input=yolo_output postprocess_dims=dims_of_output",
                 "postprocess_output=ensemble_output"),
        ],
        {**PRE_POST, "dims": "python"},
    ),
    "yolov5": Ensemble(
        "PaddlePaddle/FastDeploy", 1, "INPUT UINT8[-1,-1,3]",
        "infer_input FP32[3,-1,-1] postprocess_input_1 BYTES[1] infer_output FP32[-1,-1]", "detection_result BYTES[-1]",
        [
            step("preprocess", "INPUT_0=INPUT",
            "preprocess_output_0=infer_input preprocess_output_1=postprocess_input_1", 1),
            step("runtime", "images=infer_input", "output0=infer_output", 1),
            step("postprocess", "POST_INPUT_0=infer_output POST_INPUT_1=postprocess_input_1",
            "POST_OUTPUT=detection_result", 1),
        ],
        {**PRE_POST, "runtime": "fastdeploy"},
    ),
    "number_plates": Ensemble(
        "rushai-dev/licence-plate-triton-server-ensemble", 64, "INPUT UINT8[-1]",
        "preprocessed_image FP32[3,640,640] OUTPUT_YOLO FP32[5,8400]", "OUTPUT BYTES[-1]",
        [
            step("preprocess", "INPUT_0=INPUT", "OUTPUT_0=preprocessed_image"),
            step("yolo_detection", "images=preprocessed_image", "output0=OUTPUT_YOLO"),
            step("optical_character_recognition", "INPUT_0=OUTPUT_YOLO INPUT_1=INPUT", "OUTPUT_0=OUTPUT"),
        ],
        {"preprocess": "python", "optical_character_recognition": "python"},
        style="lists",
    ),
    "named_entities": Ensemble(
        "MrParosk/NER-serving", 512, "input_text BYTES[1]",
        "input_ids INT64[-1] token_type_ids INT64[-1] attention_mask INT64[-1] classes INT64[-1]",
        "valid BOOL[-1] token_array BYTES[-1] class_name_array BYTES[-1] offset_mapping INT64[-1,2]",
        [
            step("tokenizer", "input_text", "input_ids token_type_ids attention_mask offset_mapping", 1),
            step("transformer", "input_ids token_type_ids attention_mask", "classes", 1),
            step("postprocess", "input_text classes offset_mapping", "valid token_array class_name_array", 1),
        ],
        {"tokenizer": "python", "postprocess": "python"},
    ),
    "sentence_vectors": Ensemble(
        "PatrykNeubauer/sentence-transformers-triton-config", 0, "TEXT BYTES[-1]",
        "input_ids INT32[-1,-1] attention_mask INT32[-1,-1]", "output_0 FP32[-1,384]",
        [
            step("tokenizer", "TEXT", "input_ids attention_mask"),
            step("model", "input_ids attention_mask", "output_0"),
        ],
        {"tokenizer": "python"},
        style="lists",
    ),
    "precisions": Ensemble(
        "thelimar/mlops_course_tensorrt_conversion_deploy", None, "TEXT BYTES[-1]",
        "INPUT_IDS INT64[-1,-1] ATTENTION_MASK INT64[-1,-1]",
        " ".join(f"PROJECTION_{name} FP32[-1,2048]" for name in ("ONNX", "BEST", "FP16", "FP32", "INT8")),
        [
            step("tokenizer", "TEXT", "INPUT_IDS ATTENTION_MASK"),
            *(
                step(f"model_{name}", "INPUT_IDS ATTENTION_MASK", f"PROJECTION=PROJECTION_{name.split('_')[-1]}")
                for name in ("ONNX", "TRT_BEST", "TRT_FP16", "TRT_FP32", "TRT_INT8")
            ),
        ],
        {"tokenizer": "python", "model_TRT_BEST": "tensorrt", "model_TRT_FP16": "tensorrt",
        "model_TRT_FP32": "tensorrt",
         "model_TRT_INT8": "tensorrt"},
    ),
    "t5": Ensemble(
        "nvicuong/triton-test-t5", 0, "input_text BYTES[-1]",
        "input_ids INT32[-1,-1] attention_mask INT32[-1,-1] output_ids INT32[-1,-1]", "output_text BYTES[-1]",
        [
            step("preprocess_model", "input_text", "input_ids attention_mask"),
            step("t5_trt_model", "input_ids attention_mask", "output_ids"),
            step("postprocess_model", "output_ids", "output_text"),
        ],
        {"preprocess_model": "python", "t5_trt_model": "python", "postprocess_model": "python"},
    ),
    "vit": Ensemble(
        "softwaremill/triton_playground", 8, "image FP32[-1,-1,-1]", "pixel_values FP32[3,224,224]",
        "last_hidden_state FP32[-1,-1]",
        [
            step("preprocessing", "image", "pixel_values", 1),
            step("vit", "pixel_values", "last_hidden_state", 1),
        ],
        {"preprocessing": "python"},
    ),
    "resnet": Ensemble(
        "danieljdevine/model-serving-triton", 8, "input FP32[3,224,224]",
        "preprocessed FP32[3,224,224] logits FP32[1000]",
        "output FP32[5,2]",
        [
            step("preprocess", "input", "output=preprocessed"),
            step("resnet50", "input=preprocessed", "output=logits"),
            step("postprocess", "input=logits", "output"),
        ],
        PRE_POST,
    ),
    "captions": Ensemble(
        "RavicharanN/triton-torch-BLIP", 8, "INPUT_IMAGE BYTES[1]", "FOOD_LABEL BYTES[1]", "OUTPUT BYTES[1]",
        [
            step("food_classifier", "INPUT_IMAGE", "FOOD_LABEL"),
            step("conditional_captioning", "INPUT=INPUT_IMAGE FOOD_LABEL", "OUTPUT"),
        ],
        {"food_classifier": "python", "conditional_captioning": "python"},
    ),
    "plants": Ensemble(
        "TejasARathod/AgriDoc-PlantDiseaseClassification-Triton", 1, "images FP32[3,640,640]",
        "detection_out FP32[37,8400] mask_out FP32[32,160,160] resnet_input FP32[3,224,224]", "final_output FP32[3]",
        [
            step("segmentation", "images", "output0=detection_out output1=mask_out"),
            step("postprocess_classifier", "image=images output0=detection_out output1=mask_out", "resnet_input"),
            step("resnet_classifier", "input=resnet_input", "output=final_output"),
        ],
        {"postprocess_classifier": "python"},
    ),
    "maskformer": Ensemble(
        "hungnq1310/interior_design_segmentation", 0, "IMAGE BYTES[-1]", "pixel_values FP32[-1,3,-1,-1]",
        "class_queries_logits FP32[-1,-1,151] masks_queries_logits FP32[-1,-1,-1,-1]",
        [
            step("improc", "IMAGE", "pixel_values"),
            step("maskformer", "pixel_values", "class_queries_logits masks_queries_logits"),
        ],
        {"improc": "python"},
        style="commas",
    ),
    "physics": Ensemble(
        "eric-moreno/boostedhiggs", 0,
        "pf FP32[-1,30,22] pf_reg FP32[-1,30,10] sv FP32[-1,5,13] muon FP32[-1,2,16] elec FP32[-1,2,20] tau FP32[-1,3,18] \
         evt_z FP32[-1,11] evt_reg FP32[-1,12]",
        "",
        "hadhad FP32[-1,3] hadmu FP32[-1,1] hadel FP32[-1,1] MassReg_hadhad FP32[-1,2] MassReg_hadmu FP32[-1,2] \
         MassReg_hadel FP32[-1,2] Ztag_Zee_Zhe FP32[-1,1] Ztag_Zmm_Zhm FP32[-1,3]",
        [
            *(
                step(name, f"inputParticle=pf {more} inputSV=sv inputEvent=evt_z inputTau=tau", f"output={name}")
                for name, more in (("hadhad", ""), ("hadel", "inputEl=elec"), ("hadmu", "inputMu=muon"),
                                   ("Ztag_Zee_Zhe", "inputEl=elec"), ("Ztag_Zmm_Zhm", "inputMu=muon"))
            ),
            *(
                step(f"MassReg_{name}", "inputParticle=pf_reg inputSV=sv inputEvent=evt_reg", f"output=MassReg_{name}")
                for name in ("hadhad", "hadel", "hadmu")
            ),
        ],
        style="quotes",
    ),
    "omniglue": Ensemble(
        "a script for a matcher of images", 0, "image0 FP32[3,480,640] image1 FP32[3,480,640]",
        " ".join(f"keypoints{n} FP32[-1,2] descriptors{n} FP32[-1,256] features{n} FP32[768]" for n in "01"),
        "matches_kp0 FP32[-1,2] matches_kp1 FP32[-1,2] match_confidences FP32[-1]",
        [
            *(step("superpoint", f"image=image{n}",
            f"keypoints=keypoints{n} descriptors=descriptors{n}") for n in "01"),
            *(step("dinov2", f"image=image{n}", f"features=features{n}") for n in "01"),
            step("omniglue_matcher", "keypoints0 descriptors0 features0 keypoints1 descriptors1 features1",
                 "matches_kp0 matches_kp1 match_confidences"),
        ],
    ),
    "dense_matcher": Ensemble(
        "a generator of configurations for a dense matcher", 0,
        "img_A FP32[-1,3,64,64] img_B FP32[-1,3,64,64] num_corresp INT64[1] seed INT64[1]",
        " ".join(f"dense_{name} FP32[-1,64,64,{size}]" for name, size in
                 (("warp_there", 2), ("overlap_there", 1), ("precision_there", 4), ("warp_back", 2), ("overlap_back",
                 1), ("precision_back", 4))),
        "sampled_matches FP32[-1,4] sampled_confidence FP32[-1] sampled_precision_A FP32[-1,2,2] sampled_precision_B FP32[-1,2,2]",
        [
            step("matcher", "img_A img_B",
                 " ".join(f"{what}_{way}=dense_{what}_{way}" for way in ("there", "back") for what in ("warp",
                 "overlap", "precision"))),
            step("sampler",
                 " ".join(f"{what}_{way}=dense_{what}_{way}" for way in ("there", "back") for what in ("warp",
                 "overlap", "precision"))
                 + " num_corresp seed",
                 "matches=sampled_matches confidence=sampled_confidence precision_A=sampled_precision_A \
                  precision_B=sampled_precision_B"),
        ],
    ),
    "diffusion": Ensemble(
        "a generator of configurations for diffusion", 0, "prompts BYTES[-1,1]",
        "input_ids INT32[-1,77] attention_mask INT32[-1,77] encoder_hidden_states FP32[-1,77,768] \
         sample0 FP32[-1,4,64,64] timestep0 FP32[1] i0 INT64[1] latent FP32[-1,4,64,64] "
        + " ".join(f"noise{n} FP32[-1,4,64,64] sample{n + 1} FP32[-1,4,64,64] timestep{n + 1} FP32[1] i{n + 1} INT64[1]" for n in range(25)),
        "output FP32[-1,3,512,512]",
        [
            step("tokenizer", "prompts", "input_ids attention_mask sample=sample0 timestep=timestep0 i=i0"),
            step("text_encoder", "input_ids attention_mask", "last_hidden_state=encoder_hidden_states"),
            *denoising(25),
            step("vae", "latent=sample25", "image=output"),
        ],
        {"tokenizer": "python", "scheduler": "python"},
        style="lists",
    ),
    "data_types": Ensemble(
        "triton-inference-server/tutorials", 8,
        " ".join(f"ensemble_input_{name} {kind}" for name, kind in
                 (("string", "BYTES[-1]"), ("UINT8_array", "UINT8[-1]"), ("INT8_array", "INT8[-1]"), ("FP32_image",
                 "FP32[-1,-1,-1]"),
                  ("bool", "BOOL[-1]"))),
        "model1_to_model2_string BYTES[-1] model1_to_model2_uint8 UINT8[-1] model1_to_model2_int8 INT8[-1] \
         model1_to_model2_image FP32[-1,-1,-1] model1_to_model2_bool BOOL[-1]",
        " ".join(f"ensemble_output_{name} {kind}" for name, kind in
                 (("string", "BYTES[-1]"), ("UINT8_array", "UINT8[-1]"), ("INT8_array", "INT8[-1]"), ("FP32_image",
                 "FP32[-1,-1,-1]"),
                  ("bool", "BOOL[-1]"))),
        [
            step("model1",
                 " ".join(f"model_1_input_{name}=ensemble_input_{name}" for name in
                          ("string", "UINT8_array", "INT8_array", "FP32_image", "bool")),
                 "model_1_output_string=model1_to_model2_string model_1_output_UINT8_array=model1_to_model2_uint8 \
                  model_1_output_INT8_array=model1_to_model2_int8 model_1_output_FP32_image=model1_to_model2_image \
                  model_1_output_bool=model1_to_model2_bool"),
            step("model2",
                 "model_2_input_string=model1_to_model2_string model_2_input_UINT8_array=model1_to_model2_uint8 \
                  model_2_input_INT8_array=model1_to_model2_int8 model_2_input_FP32_image=model1_to_model2_image \
                  model_2_input_bool=model1_to_model2_bool",
                 " ".join(f"model_2_output_{name}=ensemble_output_{name}" for name in
                          ("string", "UINT8_array", "INT8_array", "FP32_image", "bool"))),
        ],
        {"model1": "python", "model2": "python"},
        style="commas",
    ),
    "fan_in": Ensemble(
        "notes on ensembles", 8, "ENS_INPUT0 FP32[4] ENS_INPUT1 FP32[4]", "PASSED0 FP32[4] PASSED1 FP32[4]",
        "ENS_OUTPUT0 FP32[4]",
        [
            step("identity_model", "INPUT0=ENS_INPUT0", "OUTPUT0=PASSED0"),
            step("identity_model", "INPUT0=ENS_INPUT1", "OUTPUT0=PASSED1"),
            step("python_add_model", "INPUT0=PASSED0 INPUT1=PASSED1", "OUTPUT0=ENS_OUTPUT0"),
        ],
        {"python_add_model": "python"},
    ),
    "batch_to_nobatch": Ensemble(
        "triton-inference-server/server", 0, "INPUT0 FP32[8,16] INPUT1 FP32[8,16]",
        "temp_output_0 FP32[8,16] temp_output_1 FP32[8,16]",
        "OUTPUT0 FP32[8,16] OUTPUT1 FP32[8,16]",
        [
            step("graphdef_float32_float32_float32", "INPUT0 INPUT1", "OUTPUT0=temp_output_0 OUTPUT1=temp_output_1", 1),
            step("custom_nobatch_zero_1_float32", "INPUT0=temp_output_0", "OUTPUT0"),
            step("custom_nobatch_zero_1_float32", "INPUT0=temp_output_1", "OUTPUT0=OUTPUT1"),
        ],
        batches={"graphdef_float32_float32_float32": 8},
    ),
    "nobatch_to_batch": Ensemble(
        "triton-inference-server/server", 8, "INPUT0 FP32[16] INPUT1 FP32[16]",
        "temp_input_0 FP32[16] temp_input_1 FP32[16]",
        "OUTPUT0 FP32[16] OUTPUT1 FP32[16]",
        [
            step("custom_nobatch_zero_1_float32", "INPUT0", "OUTPUT0=temp_input_0"),
            step("custom_nobatch_zero_1_float32", "INPUT0=INPUT1", "OUTPUT0=temp_input_1"),
            step("onnx_float32_float32_float32", "INPUT0=temp_input_0 INPUT1=temp_input_1", "OUTPUT0 OUTPUT1", 1),
        ],
        batches={"custom_nobatch_zero_1_float32": 0},
    ),
    "mix_nobatch_batch": Ensemble(
        "triton-inference-server/server", 8, "INPUT0 FP32[16] INPUT1 FP32[16]",
        "batch_input0 FP32[16] nobatch_input0 FP32[16]",
        "OUTPUT0 FP32[16] OUTPUT1 FP32[16]",
        [
            step("custom_zero_1_float32", "INPUT0", "OUTPUT0=batch_input0"),
            step("custom_nobatch_zero_1_float32", "INPUT0=batch_input0", "OUTPUT0=nobatch_input0"),
            step("onnx_float32_float32_float32", "INPUT0=nobatch_input0 INPUT1", "OUTPUT0 OUTPUT1", 1),
        ],
        batches={"custom_nobatch_zero_1_float32": 0},
    ),
    "optional_pipeline": Ensemble(
        "triton-inference-server/server", 4, "INPUT0? FP32[1] INPUT1? FP32[1]", "internal_output FP32[1]",
        "OUTPUT0 FP32[1] OUTPUT1 FP32[1]",
        [
            step("identity_2_float32", "INPUT0 INPUT1", "OUTPUT0=internal_output"),
            step("identity_2_float32", "INPUT1=internal_output", "OUTPUT0 OUTPUT1"),
        ],
    ),
    "optional_connecting_tensor": Ensemble(
        "triton-inference-server/server", 4, "INPUT0? FP32[1] INPUT1? FP32[1]",
        "internal_output0 FP32[1] internal_output1 FP32[1]",
        "OUTPUT0 FP32[1] OUTPUT1 FP32[1]",
        [
            step("optional_identity", "INPUT0 INPUT1", "OUTPUT0=internal_output0 OUTPUT1=internal_output1"),
            step("optional_identity", "INPUT0=internal_output0 INPUT1=internal_output1", "OUTPUT0 OUTPUT1"),
        ],
    ),
}  # fmt: skip
