/** A labelled choice. */

interface Props {
  label: string
  value: string
  options: [value: string, label: string][]
  onChange: (value: string) => void
  hideLabel?: boolean
}

export function Select({ label, value, options, onChange, hideLabel = false }: Props) {
  return (
    <label class="field">
      <span class={hideLabel ? 'unseen' : ''}>{label}</span>
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {options.map(([option, text]) => (
          <option key={option} value={option}>
            {text}
          </option>
        ))}
      </select>
    </label>
  )
}
