"""Fields of a model's JSON files that do not affect weft's results, with the reason.

A field that is neither here nor read by a reader (`family_fields` and the readers of the other
files) is named on stderr.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.models.arch.state_space_fields import STATE_SPACE_INERT

_BOOKS = "says where the file comes from"
_TRAINING = "is about training"
_RETURNS = "says what transformers' own forward returns"
_SEARCH = "is how transformers' own generate runs, or belongs to a search that weft does not do"
_LABELS = "names the outputs of a classifier, which weft does not load"
_SENSES = "is about images and sound, of which weft takes none"
_FURTHER = "is about layers that guess further tokens, which weft leaves aside"
_HEADS = "is about heads that fill gaps or judge texts"
_OTHER = "is not read by transformers' own code for the family"
_SPEED = "is how transformers computes, not what"


def _table(*groups: tuple[str, str]) -> dict[str, str]:
    return {name: why for why, names in groups for name in names.split()}


# transformers' generate: fields without a meaning of their own here.
GENERATION: Mapping[str, str] = _table(
    (_SEARCH, """
        early_stopping num_return_sequences length_penalty use_cache
        cache_implementation cache_config return_legacy_cache output_attentions
        output_hidden_states output_scores output_logits return_dict_in_generate
        assistant_early_exit assistant_confidence_threshold assistant_lookbehind
        target_lookbehind num_assistant_tokens num_assistant_tokens_schedule
        is_assistant prompt_lookup_num_tokens max_matching_ngram_size remove_invalid_values
        renormalize_logits low_memory prefill_chunk_size compile_config
        disable_compile chat_format max_window_size decoder_start_token_id trust_remote_code
        encoder_no_repeat_ngram_size encoder_repetition_penalty use_mtp"""),
    (_BOOKS, "transformers_version _from_model_config _original_object_hash _name_or_path "
     "_commit_hash"),
)  # fmt: skip

# Keys of generation_config.json that change which tokens are written and that weft does not follow,
# and the values that change nothing. Other values are named on stderr.
UNFOLLOWED: Mapping[str, tuple[object, ...]] = {
    "no_repeat_ngram_size": (0,), "begin_suppress_tokens": ([],), "forced_bos_token_id": (),
    "forced_eos_token_id": (), "exponential_decay_length_penalty": (), "sequence_bias": ({}, []),
    "force_words_ids": ([],), "constraints": ([],), "guidance_scale": (1,),
    "token_healing": (False,), "watermarking_config": ({},), "typical_p": (1,), "top_h": (),
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "num_beams": (1,), "num_beam_groups": (1,),
    "diversity_penalty": (0,), "penalty_alpha": (0,), "min_length": (0,), "min_new_tokens": (0,),
    "max_time": (), "dola_layers": (),
}  # fmt: skip
_SAMPLING = _table(
    (
        _SEARCH,
        """
    do_sample temperature top_k top_p min_p repetition_penalty max_new_tokens max_length
    suppress_tokens bad_words_ids stop_strings""",
    )
)

CONFIG: Mapping[str, str] = {
    **GENERATION,
    **dict.fromkeys(UNFOLLOWED, _SEARCH),
    **_SAMPLING,
    **_table(
        (_BOOKS, """
            architectures model_type dtype torch_dtype transformers_version name_or_path auto_map
            license language library_name base_model unsloth_version unsloth_fixed finetuning_task
            task_specific_params gradient_checkpointing _attn_implementation
            _attn_implementation_autoset attn_implementation experts_implementation
            _experts_implementation transformers.js_config _unsloth_version"""),
        (_TRAINING, """
            initializer_range initializer_factor attention_dropout hidden_dropout
            hidden_dropout_prob attention_probs_dropout_prob classifier_dropout resid_pdrop
            embd_pdrop attn_pdrop dropout qa_dropout seq_classif_dropout sinusoidal_pos_embds
            router_aux_loss_coef router_jitter_noise output_router_logits
            input_jitter_noise summary_activation summary_first_dropout summary_proj_to_labels
            summary_type summary_use_proj summary_last_dropout block_mlp_init_scale
            block_out_init_scale block_use_xavier_init conv_use_xavier_init embedding_dropout
            activation_dropout
            attention_probs_dropout mlp_dropout layerdrop tie_weights_ residual_dropout"""),
        (_RETURNS, "return_dict use_return_dict torchscript tie_last_hidden_states "
         "output_past keys_to_ignore_at_inference"),
        (_LABELS, "id2label label2id num_labels problem_type"),
        (_SPEED, "chunk_size_feed_forward use_bfloat16 pretraining_tp tf_legacy_loss "
         "reorder_and_upcast_attn pad_token_type use_flash_attn base_model_tp_plan "
         "mamba_ssm_dtype"),
        ("is read with the ids that end a text", "eos_token_id bos_token_id pad_token_id"),
        ("is an id that only tokenizers use", "sep_token_id cls_token_id mask_token_id "
         "unk_token_id"),
        ("is read with the weights", "quantization_config quantization compression_config"),
        (_FURTHER, "num_nextn_predict_layers mtp_num_hidden_layers mtp_use_dedicated_embeddings "
         "mtp_layers_block_type"),
        ("ties an encoder to a decoder, of which weft runs one", "tie_encoder_decoder"),
        (_SENSES, "vision_config audio_config language_model_only modality"),
    ),
}  # fmt: skip

_TIED = _table(("ties a head that fills gaps, which weft does not compute", "tie_word_embeddings"))
_WAYS = "is about slow tokenizers; tokenizer.json has what was made of it"
_CUT = "says how transformers cuts and pads batches; weft does so by the model's own limit"
# tokenizer_config.json; names of tokens end in `_token` and are read.
TOKENIZER: Mapping[str, str] = _table(
    (_BOOKS, """
        tokenizer_class name_or_path special_tokens_map_file tokenizer_file transformers_version
        processor_class auto_map backend is_local local_files_only _commit_hash files_loaded
        added_tokens_file vocab_file merges_file unsloth_version model_input_names
        image_processor_type feature_extractor_type init_inputs _from_auto repo_type"""),
    (_WAYS, """
        legacy from_slow use_fast sp_model_kwargs spaces_between_special_tokens errors
        do_basic_tokenize never_split keep_accents remove_space trim_offsets unk_id vocab_size
        additional_special_tokens_ids tokenize_numbers add_dummy_prefix
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"""),
    (_CUT, """
        padding_side padding max_length max_len stride truncation truncation_strategy
        pad_to_multiple_of pad_token_type_id model_max_len"""),
    ("is what tokenizer.json says, which goes first in transformers too", "add_bos_token "
     "add_eos_token"),
    ("is about chats, of which the template says how", "use_default_system_prompt "
     "chat_control_tokens response_schema"),
)  # fmt: skip

# Further inert fields in the files of a family.
FAMILY: Mapping[str, Mapping[str, str]] = {
    "gpt2": _table((_OTHER, "n_ctx use_weight_tying")),
    "qwen2": _table((_OTHER, "use_mrope")),
    "parakeet_ctc": _table((_TRAINING, "ctc_loss_reduction ctc_zero_infinity")),
    "parakeet_encoder": _table((_TRAINING, "dropout_positions")),
    "moonshine": _table((_SPEED, "pad_head_dim_to_multiple_of")),
    "qwen3_moe": _table((_OTHER, "max_window_layers shared_expert_intermediate_size")),
    "qwen3_next": _table((_OTHER, "use_sliding_window sliding_window max_window_layers")),
    "qwen3_5_text": _table((_OTHER, "attn_output_gate use_sliding_window sliding_window")),
    "qwen3_5_moe_text": _table((_OTHER, """
        attn_output_gate intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers
        use_sliding_window sliding_window""")),
    "gemma2": _table((_OTHER, "hidden_act")),
    "gemma3_text": _table((_OTHER, "hidden_act attn_logit_softcapping")),
    "gemma3n_text": _table((_OTHER, "hidden_act"), (_TRAINING, "altup_coef_clip")),
    "gemma4_text": _table((_OTHER, "hidden_act attn_logit_softcapping")),
    "gemma4_unified_text": _table((_OTHER, "hidden_act attn_logit_softcapping")),
    "gpt_oss": _table((_OTHER, "hidden_act initial_context_length experts_per_token")),
    "lfm2": _table((_OTHER, """
        block_dim block_norm_eps block_use_swiglu conv_dim conv_dim_out num_heads use_pos_enc
        theta hidden_act rms_norm_eps""")),
    "phi3": _table((_OTHER, "attention_bias mlp_bias lm_head_bias interpolate_factor "
                    "full_attn_mod embd_layer")),
    "deepseek_v2": _table((_OTHER, """
        head_dim qk_head_dim ep_size scoring_func seq_aux aux_loss_alpha moe_layer_freq
        norm_topk_prob""")),
    "deepseek_v3": _table((_OTHER, """
        head_dim qk_head_dim ep_size scoring_func seq_aux aux_loss_alpha moe_layer_freq
        topk_method""")),
    "gpt_neox": _table((_OTHER, "is_decoder num_key_value_heads head_dim")),
    "hunyuan_v1_dense": _table(
        ("is an id that only tokenizers use", "eod_token_id"),
        (_OTHER, "use_qk_norm use_cla cla_share_factor mlp_bias attention_head_dim norm_type"),
    ),
    "apertus": _table((_OTHER, "mlp_bias post_norm qk_norm")),
    "starcoder2": _table((_OTHER, "mlp_type norm_type")),
    "gemma": _table((_OTHER, "hidden_activation")),
    "cohere2": _table((_OTHER, """
        order_of_interleaved_layers position_embedding_type rotary_pct use_embedding_sharing
        use_gated_activation use_parallel_block use_parallel_embedding use_qk_norm
        layer_switch""")),
    "smollm3": _table((_OTHER, "max_window_layers")),
    "mistral": _table((_OTHER, "attention_bias mlp_bias")),
    **STATE_SPACE_INERT,
    "bert": _TIED | _table(
        ("says what modules.json says of pooling", "emb_pooler"),
        ("is how Jina's code computes, not what", "attn_implementation model_max_length"),
        (_OTHER, """
        directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
        pooler_size_per_head pooler_type""")),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "distilbert", "electra",
                     "mpnet", "gte", "jina_embeddings_v3"), _TIED),
    "albert": _TIED | _table((_OTHER, """
        classifier_dropout_prob down_scale_factor gap_size net_structure_type
        num_memory_blocks""")),
    "modernbert": _TIED | _table((_OTHER, """
        position_embedding_type layer_norm_eps reference_compile repad_logits_with_grad"""),
        (_TRAINING, "initializer_cutoff_factor"),
        (_HEADS, """
        classifier_pooling classifier_bias classifier_activation decoder_bias sparse_prediction
        sparse_pred_ignore_index"""),
        (_SPEED, "deterministic_flash_attn")),
    "nomic_bert": _TIED | _table((_OTHER, """
        max_trained_positions rotary_emb_scale_base dense_seq_output use_xentropy
        last_layer_subset pad_vocab_size_multiple"""),
        (_SPEED, "fused_bias_fc fused_dropout_add_ln use_flash_attn")),
    "deberta": _TIED | _table(
        (_HEADS, "pooler_hidden_act pooler_hidden_size pooler_dropout legacy"),
        (_OTHER, "padding_idx")),
    "deberta-v2": _TIED | _table(
        (_HEADS, "pooler_hidden_act pooler_hidden_size pooler_dropout legacy")),
    **dict.fromkeys(("t5", "mt5", "umt5"), _TIED | _table(
        (_TRAINING, "dropout_rate"),
        (_OTHER, """
        dense_act_fn is_gated_act num_decoder_layers scale_decoder_outputs output_past
        tokenizer_class"""))),
    **dict.fromkeys(("whisper", "bart", "marian"), _TIED | _table(
        (_TRAINING, """
        apply_spec_augment mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob
        mask_feature_length mask_feature_min_masks encoder_layerdrop decoder_layerdrop init_std
        dropout attention_dropout activation_dropout classifier_dropout"""),
        (_HEADS, "use_weighted_layer_sum classifier_proj_size classif_dropout"),
        (_OTHER, """
        num_hidden_layers median_filter_width extra_pos_embeddings force_bos_token_to_be_generated
        add_bias_logits gradient_checkpointing save_step"""),
        (_SEARCH, """
        suppress_tokens begin_suppress_tokens forced_decoder_ids max_length num_beams
        forced_eos_token_id forced_bos_token_id bad_words_ids no_repeat_ngram_size
        early_stopping length_penalty min_length"""))),
}  # fmt: skip
# Prefixes of fields for the other senses of a multimodal model.
SENSES = ("vision", "image", "video", "audio", "boi_", "eoi_", "boa_", "eoa_", "spatial_",
          "projector_", "multimodal_", "mm_")  # fmt: skip

# Fields that change the results of any model, and the values that do not.
REFUSED: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,), "add_cross_attention": (False,), "is_causal": (True,),
    "per_layer_config": ({},), "pruned_heads": ({}, []), "cross_attention_hidden_size": (),
}  # fmt: skip
