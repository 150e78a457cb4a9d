/** What runs record in English words, in the reader's language: causes of forks, reasons, phases, accounts of tokens. */

import { language } from '../state/preferences'

const CHINESE: { [term: string]: string } = {
  'another agent': '另一个智能体',
  'sampled again': '再次采样',
  'tools changed': '工具已更改',
  'template rewrote history': '模板改写了历史',
  'history cut': '历史被截断',
  'history replaced': '历史被替换',
  'message inserted': '插入了消息',
  'message dropped': '丢弃了消息',
  'message edited': '修改了消息',
  'trained in another timeline': '在另一条时间线中训练',
  'held out': '验证集',
  'group has no variance': '组内奖励没有差异',
  'group has no variance for the policy': '组内该策略的奖励没有差异',
  'no trained agent spoke in the group': '组内没有受训智能体发言',
  'group incomplete': '组不完整',
  'step out of time': '训练步超时',
  'step not finished': '训练步未完成',
  'episode without a reward': '回合没有奖励',
  'debug run': '调试运行',
  'failed attempts': '失败的尝试',
  rollout: '采样',
  train: '训练',
  sync: '同步权重',
  validation: '验证',
  sampled: '生成',
  trained: '参与训练',
  masked: '被屏蔽',
  dropped: '被丢弃',
  tokens: 'token',
  'tokens/s': 'token/秒',
  nats: '奈特',
  seconds: '秒',
  episodes: '回合',
  turns: '轮',
  steps: '步',
  groups: '组',
  answers: '次',
  calls: '次',
  messages: '条',
  branches: '个',
}

/** Each part of `group incomplete: …` or `dropped/held out` that is known; in English as it was recorded. */
export function term(recorded: string): string {
  if (language.value !== 'zh') return recorded
  if (recorded in CHINESE) return CHINESE[recorded]!
  return recorded
    .split(/(: |\/)/)
    .map((part) => CHINESE[part] ?? part)
    .join('')
}
