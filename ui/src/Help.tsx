/** Keys, and what colours mean. */

import { useEffect, useRef } from 'preact/hooks'

import type { Word } from './text/words'
import { t } from './text/translate'
import { Legend } from './tokens/Legend'

const KEYS: [string[], Word][] = [
  [['j'], 'key_next_episode'],
  [['k'], 'key_previous_episode'],
  [['n', 'p'], 'key_messages'],
  [['[', ']'], 'key_timelines'],
  [['1', '…', '6'], 'key_faces'],
  [['t'], 'key_toggle'],
  [['/'], 'key_search'],
  [['←', '→', '↑', '↓'], 'key_token'],
  [['o', 'e', 'd', 'r'], 'key_views'],
  [['c'], 'key_sessions'],
  [['x'], 'key_theme'],
  [['Esc'], 'key_close'],
  [['?'], 'key_help'],
]

export function Help({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => dialog.current?.showModal(), [])
  return (
    <dialog
      ref={dialog}
      class="help"
      aria-label={t('help')}
      onClose={onClose}
      onClick={(event) => event.target === dialog.current && onClose()}
    >
      <div class="help-body">
        <button class="icon end" aria-label={t('close')} onClick={onClose}>
          ✕
        </button>
        <h2>{t('keys')}</h2>
        <dl class="keys">
          {KEYS.map(([keys, word]) => (
            <div key={word}>
              <dt>
                {keys.map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </dt>
              <dd>{t(word)}</dd>
            </div>
          ))}
        </dl>
        <h2>{t('colours')}</h2>
        <Legend colouring="loss" scale={1} />
        <p class="faint">{t('link_hint')}</p>
      </div>
    </dialog>
  )
}
